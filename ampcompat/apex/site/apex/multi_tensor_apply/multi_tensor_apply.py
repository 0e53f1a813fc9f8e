"""The class behind ``multi_tensor_applier``."""

from ampcompat.apex.multi_tensor.apply import MultiTensorApply
