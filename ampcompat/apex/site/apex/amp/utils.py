"""Small tests of tensors, under Apex's names."""

import torch


def is_cuda_enabled():
    """Return whether this torch was built for CUDA."""
    return torch.version.cuda is not None


def is_fp_tensor(value):
    """Return whether ``value`` is a floating-point tensor, or a tuple or list of only such tensors."""
    if is_nested(value):
        return all(is_fp_tensor(item) for item in value)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_nested(value):
    """Return whether ``value`` is a tuple or a list."""
    return isinstance(value, (tuple, list))


def type_string(value):
    """Return the last part of the name of a tensor's type, such as ``HalfTensor``."""
    return value.type().split(".")[-1]
