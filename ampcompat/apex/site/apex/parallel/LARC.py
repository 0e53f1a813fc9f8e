"""The optimizer wrapper."""

from ampcompat.apex.parallel.larc import LARC
