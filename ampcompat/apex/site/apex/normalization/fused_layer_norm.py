"""Layer norm and RMS norm, as modules, as functions, and as what were autograd functions."""

from ampcompat.apex.normalization import *
