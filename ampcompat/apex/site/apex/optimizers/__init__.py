"""Optimizers."""

from ampcompat.apex.contrib.fused_fp16_optimizer import FP16_Optimizer
from ampcompat.apex.optimizers import (
    FusedAdagrad,
    FusedAdam,
    FusedLAMB,
    FusedMixedPrecisionLamb,
    FusedNovoGrad,
    FusedSGD,
)
