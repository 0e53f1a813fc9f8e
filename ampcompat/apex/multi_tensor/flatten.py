"""``flatten`` and ``unflatten`` of ``apex_C``: one flat tensor for many, and back.

All tensors must have the same dtype; otherwise torch raises its own error.
"""

import torch


def flatten(tensors):
    """Return the elements of all tensors as one contiguous tensor of one dimension."""
    return torch.cat([tensor.contiguous().reshape(-1) for tensor in tensors])


def unflatten(flat, tensors):
    """Return views of the first elements of ``flat`` with the shapes of ``tensors``, in order."""
    views, start = [], 0
    for tensor in tensors:
        views.append(flat.narrow(0, start, tensor.numel()).view(tensor.shape))
        start += tensor.numel()
    return tuple(views)
