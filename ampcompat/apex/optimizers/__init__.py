"""The optimizers of ``apex.optimizers``, on any device and for params of any floating-point dtype."""

from .adam import FusedAdagrad, FusedAdam
from .lamb import FusedLAMB, FusedMixedPrecisionLamb
from .novograd import FusedNovoGrad
from .sgd import FusedSGD
