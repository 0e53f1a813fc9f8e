"""The optimizers of ``apex.optimizers``, on any device and for params of any floating-point dtype."""

from .adagrad import FusedAdagrad
from .adam import FusedAdam
from .lamb import FusedLAMB
from .mixed_lamb import FusedMixedPrecisionLamb
from .novograd import FusedNovoGrad
from .sgd import FusedSGD
