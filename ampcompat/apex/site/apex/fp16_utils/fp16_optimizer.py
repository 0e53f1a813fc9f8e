"""The wrapper of an optimizer from before ``amp.initialize``."""

from ampcompat.apex.fp16_utils.fp16_optimizer import FP16_Optimizer
