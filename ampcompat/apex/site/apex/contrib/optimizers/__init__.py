"""Optimizers from before 2019."""

from ampcompat.apex.contrib.fused_fp16_optimizer import FP16_Optimizer
from ampcompat.apex.contrib.optimizers import FusedAdam, FusedLAMB, FusedSGD
