"""Optimizers from before 2019."""

from ampcompat.apex.contrib.optimizers import FP16_Optimizer, FusedAdam, FusedLAMB, FusedSGD
