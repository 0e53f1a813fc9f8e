"""The class behind ``multi_tensor_applier``."""

from ampcompat.apex.multi_tensor.functions import MultiTensorApply
