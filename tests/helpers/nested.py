"""Comparison of nests of dicts, lists and tensors, such as checkpoints."""

import torch


def same(one, other):
    """Return whether two nests are equal, tensors bit for bit and in their dtypes."""
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
