"""Optimizers."""

from ampcompat.apex.contrib.optimizers import FP16_Optimizer
from ampcompat.apex.optimizers import (
    FusedAdagrad,
    FusedAdam,
    FusedLAMB,
    FusedMixedPrecisionLamb,
    FusedNovoGrad,
    FusedSGD,
)
