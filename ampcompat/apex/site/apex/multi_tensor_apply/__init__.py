"""Functions on lists of tensors."""

from ampcompat.apex.multi_tensor.apply import MultiTensorApply, multi_tensor_applier
