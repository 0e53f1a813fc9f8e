"""One flat tensor for many, and back: what ``apex_C`` holds.

Owns: ``flatten``, ``unflatten``.
Must not touch: the tensors that come in.
The surprise: tensors of more than one dtype cannot share a flat one; the error is torch's own.
"""

import torch


def flatten(tensors):
    """Return the elements of all tensors as one contiguous tensor of one dimension."""
    return torch.cat([tensor.contiguous().reshape(-1) for tensor in tensors])


def unflatten(flat, tensors):
    """Return views of ``flat`` with the shapes of ``tensors``, in turn."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors))
