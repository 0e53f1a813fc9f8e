"""Functions on lists of tensors."""

from ampcompat.apex.multi_tensor.functions import MultiTensorApply, multi_tensor_applier
