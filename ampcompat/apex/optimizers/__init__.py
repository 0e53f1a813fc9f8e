"""The optimizers of ``apex.optimizers``, on any device and for params of any floating-point dtype."""

from .adam import FusedAdagrad, FusedAdam
from .lamb import FusedLAMB, FusedMixedPrecisionLamb, FusedNovoGrad
from .sgd import FusedSGD
