"""Functions on lists of tensors."""

from ampcompat.apex.multi_tensor.apply import multi_tensor_applier, MultiTensorApply
