"""Small tests of tensors, under Apex's names."""

import torch


def filter_attrs(module, attrs):
    """Return those names of ``attrs`` that ``module`` has."""
    return [name for name in attrs if hasattr(module, name)]


def is_tensor_like(value):
    """Return whether ``value`` is a tensor."""
    return isinstance(value, torch.Tensor)


def is_floating_point(value):
    """Return whether ``value`` is a floating tensor."""
    return is_tensor_like(value) and value.is_floating_point()


tensor_is_float_tensor = is_floating_point


def scalar_python_val(value):
    """Return the number in a tensor of one element; a number is returned as it is."""
    return value.item() if hasattr(value, "item") else value
