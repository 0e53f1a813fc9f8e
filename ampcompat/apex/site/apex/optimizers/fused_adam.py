"""One optimizer, by the module that Apex had it in."""

from ampcompat.apex.optimizers import FusedAdam
