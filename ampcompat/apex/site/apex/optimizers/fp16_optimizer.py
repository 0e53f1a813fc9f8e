"""The wrapper from before 2019, by the module that Apex had it in."""

from ampcompat.apex.contrib.optimizers import FP16_Optimizer
