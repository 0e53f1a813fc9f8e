"""Arithmetic over lists of tensors: one dispatched operation for many tensors where torch has such operations.

Owns: the choice between ``torch._foreach_*`` and a loop.
Must not touch: which tensors, and why.
The surprise: ``widened`` lays its results out in one allocation per chunk, so that the number of operations does not grow
with the number of params.
"""

import torch

from ..tables import torch_facts

#: Elements that are widened at a time. Large enough to keep a device busy, small beside a model.
CHUNK = 1 << 22


def is_narrower(tensor, dtype):
    """Return whether ``tensor`` is floating and takes fewer bytes per element than ``dtype``."""
    return tensor.is_floating_point() and tensor.element_size() < torch.empty((), dtype=dtype).element_size()


def grouped(tensors):
    """Return ``{(device, dtype): tensors}``."""
    groups = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return groups


def multiply_(tensors, factor):
    """Multiply tensors by a number in place."""
    if not torch_facts.has_foreach():
        for tensor in tensors:
            tensor.mul_(factor)
        return
    for alike in grouped(tensors).values():
        torch._foreach_mul_(alike, factor)


def add_(sums, terms):
    """Add ``terms`` to ``sums`` in place, pairwise; same dtypes."""
    if not torch_facts.has_foreach():
        for total, term in zip(sums, terms):
            total.add_(term)
    elif sums:
        torch._foreach_add_(sums, terms)


def copy_(targets, sources):
    """Copy ``sources`` into ``targets``, pairwise, casting."""
    if not torch_facts.has_foreach_copy():
        for target, source in zip(targets, sources):
            target.copy_(source)
    elif targets:
        torch._foreach_copy_(targets, sources)


def chunked(items, tensor_of):
    """Yield lists of items on one device whose tensors hold about ``CHUNK`` elements together."""
    by_device = {}
    for item in items:
        by_device.setdefault(tensor_of(item).device, []).append(item)
    for alike in by_device.values():
        chunk, size = [], 0
        for item in alike:
            chunk.append(item)
            size += tensor_of(item).numel()
            if size >= CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def widened(tensors, dtype):
    """Return copies in ``dtype`` of tensors on one device; sparse ones come back coalesced."""
    regular = [tensor for tensor in tensors if not tensor.is_sparse and tensor.is_contiguous()]
    copies = {}
    if regular:
        memory = torch.empty(sum(tensor.numel() for tensor in regular), dtype=dtype, device=regular[0].device)
        pieces = memory.split([tensor.numel() for tensor in regular])
        pieces = [piece.view(tensor.shape) for piece, tensor in zip(pieces, regular)]
        copy_(pieces, regular)
        copies = {id(tensor): piece for tensor, piece in zip(regular, pieces)}
    return [copies[id(tensor)] if id(tensor) in copies else _widened_alone(tensor, dtype) for tensor in tensors]


def _widened_alone(tensor, dtype):
    return (tensor.coalesce() if tensor.is_sparse else tensor).to(dtype)


def check_and_scale_(tensors, factor, found):
    """Multiply tensors (one device, one dtype) by ``factor`` in place; set ``found`` to 1 if one held inf or nan.

    Args:
        tensors: dense floating tensors.
        factor: a float.
        found: a float32 tensor of shape () on their device.
    """
    if torch_facts.has_foreach_unscale(found.device.type):
        factor = torch.full((), factor, dtype=torch.float32, device=found.device)
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
        return
    for tensor in tensors:
        if not all_finite(tensor):
            found.fill_(1.0)
        tensor.mul_(factor)


def all_finite(tensor):
    """Return whether no element is inf or nan; waits for the device."""
    # x - x is 0 for every finite x and nan otherwise: it needs only subtraction, which every torch has.
    return bool((tensor - tensor == 0).all())
