"""Differences of tensors in units of a dtype's rounding."""

import math

import torch


def unit(dtype):
    """Return the difference between 1 and the next larger number of a dtype."""
    return torch.finfo(dtype).eps


def in_units(value, expected, dtype, limit=None, scale=None):
    """Return how far a tensor is from another: the root mean square of the difference, over eps of a dtype times that
    of the expected values. Rounding explains up to 0.5.

    Numbers beyond the range of the dtype ``limit`` count as its largest number, and equal infinities as equal. inf if
    ``value`` has a nan or inf that ``expected`` does not have. ``scale``: a tensor whose root mean square is used if it
    is larger than that of the expected values: for a sum whose terms cancel, the sum of absolute values.
    """
    distance, size = _distance_and_size(value, expected, limit or dtype)
    size = size if scale is None else max(size, _size(_doubles(scale, limit or dtype)))
    if not math.isfinite(distance):
        return math.inf
    floor = torch.finfo(dtype).tiny * unit(dtype)  # the smallest positive number, used instead of 0
    return distance / max(unit(dtype) * size, floor) if distance else 0.0


def is_rounding_of(value, expected):
    """Return whether each number of a tensor equals that of another rounded to its dtype."""
    wide, dtype = _doubles(expected, value.dtype), value.dtype
    limit = unit(dtype) * wide.abs() + torch.finfo(dtype).tiny * unit(dtype)
    difference = (value.double() - wide).abs()
    return bool(((difference <= limit) | (value.double() == wide) | (value.isnan() & expected.isnan())).all())


def is_finite(tensors):
    """Return whether all numbers of some tensors are finite."""
    return all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point())


def _doubles(tensor, dtype):
    largest = torch.finfo(dtype).max
    tensor = tensor.double()
    return torch.where(tensor.isinf(), tensor, tensor.clamp(-largest, largest))


def _distance_and_size(value, expected, dtype):
    value, expected = _doubles(value, dtype), _doubles(expected, dtype)
    same = (value == expected) | (value.isnan() & expected.isnan())
    difference = torch.where(same, torch.zeros_like(value), value - expected)
    if not value.numel():
        return 0.0, 0.0
    return difference.pow(2).mean().sqrt().item(), _size(expected)


def _size(tensor):
    finite = tensor[torch.isfinite(tensor)]
    return finite.pow(2).mean().sqrt().item() if finite.numel() else 0.0
