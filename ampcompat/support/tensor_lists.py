"""Arithmetic on lists of tensors, with ``torch._foreach_*`` if torch has it and otherwise with a loop.

The number of dispatched operations must not grow with the number of params, so some functions here are indirect.
"""

import inspect
import operator

import torch

from .torch_compat import features
from .torch_compat.thread_blocks import grad_enabled

#: ``grad`` of ``torch.Tensor``: the gradient that autograd has accumulated, even if a subclass returns another one.
GRADIENT = inspect.getattr_static(torch.Tensor, "grad")

#: ``stored_gradient(tensor)`` and ``set_stored_gradient(tensor, gradient)`` read and write it.
stored_gradient, set_stored_gradient = GRADIENT.__get__, GRADIENT.__set__

#: ``data_of(tensor)`` and ``set_data(tensor, value)`` read and set ``tensor.data``, not noted by ``WrittenMemory``.
_DATA = inspect.getattr_static(torch.Tensor, "data")
data_of, set_data = _DATA.__get__, _DATA.__set__

_IS_SPARSE = operator.attrgetter("is_sparse")

#: Number of elements that are widened at a time: enough to keep a device busy, few compared with a model.
CHUNK = 1 << 22

#: For fewer elements, separate operations are not worthwhile.
SMALLEST_CHUNK = 1 << 17


def is_narrower(tensor, dtype):
    """Return whether ``tensor`` is floating-point with fewer bits per element than ``dtype``."""
    return tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < torch.finfo(dtype).bits


#: The classes of tensors that have memory of their own, and operations of torch.
PLAIN = frozenset([torch.Tensor, torch.nn.Parameter])


def is_shard(tensor):
    """Return whether a tensor is a DTensor: this rank's part of a tensor that is split over ranks."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def _are_shards(tensors):
    """Return whether any is a DTensor, which torch copies one by one."""
    return any(map(is_shard, set(map(type, tensors))))


def have_gradients(params):
    """Return whether any of the params has a gradient."""
    for param in params:  # a third faster than ``any`` with a generator or with ``map``
        if param.grad is not None:
            return True
    return False


def have_stored_gradients(params):
    """Return whether autograd has accumulated a gradient in any of the params, whatever ``.grad`` returns."""
    for param in params:
        if stored_gradient(param) is not None:
            return True
    return False


def grouped(tensors):
    """Return lists of tensors of one device and dtype each.

    A sparse (coalesced) tensor is replaced by its values, a DTensor by the part of this rank.
    """
    groups = {}
    device = dtype = alike = None  # of the previous tensor: a comparison is faster than a look-up
    for tensor in tensors:
        if tensor.is_sparse:
            tensor = tensor._values()
        elif type(tensor) is not torch.Tensor and is_shard(tensor):
            tensor = tensor.to_local()
        if tensor.dtype is not dtype or tensor.device != device:
            device, dtype = tensor.device, tensor.dtype
            alike = groups.setdefault((device, dtype), [])
        alike.append(tensor)
    return list(groups.values())


def as_real(tensor):
    """Return a view of a dense complex tensor's real and imaginary parts; any other tensor as it is.

    For a lazy conjugate, the view is of the parts before conjugation, which differ only in sign.
    """
    if not features.has_complex_views() or not tensor.is_complex():
        return tensor
    is_lazy_conjugate = hasattr(tensor, "is_conj") and tensor.is_conj()
    return torch.view_as_real(tensor.conj() if is_lazy_conjugate else tensor)


def _real(alike):
    """Return a group of tensors as real ones."""
    return alike if not alike or alike[0].is_floating_point() else [as_real(tensor) for tensor in alike]


def coalesced(gradient):
    """Return a sparse gradient coalesced, with sums in at least float32; a dense one as it is."""
    if not gradient.is_sparse or gradient.is_coalesced():
        return gradient
    if is_narrower(gradient, torch.float32):
        return gradient.to(torch.float32).coalesce().to(gradient.dtype)
    return gradient.coalesce()


def multiply_(groups, factor):
    """Multiply groups of tensors (see ``grouped``) in place by a float, or a tensor of shape ()."""
    for alike in map(_real, groups):
        if isinstance(factor, torch.Tensor):
            factor = factor.to(alike[0].device)
        if features.has_foreach():
            torch._foreach_mul_(alike, factor)
        else:
            for tensor in alike:
                tensor.mul_(factor)


def add_(sums, terms):
    """Add ``terms`` to ``sums`` in place, pairwise; same dtypes."""
    if not features.has_foreach():
        for total, term in zip(sums, terms):
            total.add_(term)
    elif sums:
        torch._foreach_add_(sums, terms)


def copy_(targets, sources):
    """Copy ``sources`` into ``targets``, pairwise, casting."""
    if not features.has_foreach_copy() or (not PLAIN.issuperset(map(type, targets)) and _are_shards(targets)):
        for target, source in zip(targets, sources):
            target.copy_(source)
    elif targets:
        torch._foreach_copy_(targets, sources)


def chunked(pairs):
    """Return lists of (model, master) pairs on one device, to be widened one list at a time.

    A list has at most ``CHUNK`` elements, or half of the remaining ones. While it is widened, its tensors exist twice.
    With long lists first and short ones last, the peak is no higher than the final memory of the wide tensors.
    """
    by_device = {}
    for pair in sorted(pairs, key=lambda pair: pair[1].numel(), reverse=True):
        by_device.setdefault(pair[1].device, []).append(pair)
    return [chunk for alike in by_device.values() for chunk in _tapering(alike)]


def _tapering(pairs):
    remaining = sum(master.numel() for _, master in pairs)
    chunks, size, limit = [], 0, 0
    for pair in pairs:
        if size >= limit:
            chunks.append([])
            size, limit = 0, min(CHUNK, max(remaining // 2, SMALLEST_CHUNK))
        chunks[-1].append(pair)
        size += pair[1].numel()
        remaining -= pair[1].numel()
    return chunks


def widened(tensors, models):
    """Return copies of tensors in the dtype and layout of ``models`` (pairwise), and the same copies as groups.

    Sparse ones come back coalesced.
    """
    if (
        any(map(_IS_SPARSE, tensors))
        or (not PLAIN.issuperset(map(type, tensors)) and _are_shards(tensors))
        or not features.has_foreach_copy()
    ):
        copies = [tensor.to(model.dtype) for tensor, model in zip(tensors, models)]
        copies = [tensor.coalesce() if tensor.is_sparse else tensor for tensor in copies]
        return copies, grouped(copies)
    # One operation allocates all the copies; their negated values are overwritten.
    copies = torch._foreach_neg(models)
    torch._foreach_copy_(copies, tensors)
    return copies, [copies]


def check_and_scale_(tensors, factor, found):
    """Multiply tensors (one device, one dtype) by ``factor`` in place; set ``found`` to 1 if one has inf or nan.

    Args:
        tensors: dense floating or complex tensors, at least one.
        factor: a float, or a tensor of shape ().
        found: a float32 tensor of shape () on their device.
    """
    if not tensors[0].is_floating_point():
        tensors = _real(tensors)
    device_type = found.device.type
    if features.has_foreach_unscale(device_type, tensors[0].dtype):
        if isinstance(factor, torch.Tensor):
            factor = factor.to(found.device, torch.float32)
        else:
            factor = torch.full((), factor, dtype=torch.float32, device=found.device)
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
        return
    if is_narrower(tensors[0], torch.float32) and features.has_foreach_unscale(device_type, torch.float32):
        wide = [tensor.to(torch.float32) for tensor in tensors]
        check_and_scale_(wide, factor, found)
        copy_(tensors, wide)
        return
    for tensor in tensors:
        if not all_finite(tensor):
            found.fill_(1.0)
        tensor.mul_(factor)


def all_finite(tensor):
    """Return whether no element is inf or nan; waits for the device."""
    # x - x is 0 for every finite x and nan otherwise: it only uses subtraction, which every torch has.
    return bool((tensor - tensor == 0).all())


def has_non_finite(grads):
    """Return whether one of the gradients contains inf or nan; synchronizes with each device once."""
    flags = {}
    with grad_enabled(False):
        for group in grouped([grad.coalesce() if grad.is_sparse else grad for grad in grads]):
            device = group[0].device
            if device not in flags:
                flags[device] = torch.zeros((), dtype=torch.float32, device=device)
            check_and_scale_(group, 1.0, flags[device])
    return any(flag.item() != 0.0 for flag in flags.values())


def add_gradients(tensors, grads):
    """Add gradients to those of tensors; a tensor without a gradient gets the given one itself."""
    sums, terms = [], []
    for tensor, grad in zip(tensors, grads):
        held = stored_gradient(tensor)
        if held is None:
            set_stored_gradient(tensor, grad)
        elif held.is_sparse or grad.is_sparse:  # torch wants a dense one first
            set_stored_gradient(tensor, grad + held if held.is_sparse else held + grad)
        else:
            sums.append(held)
            terms.append(grad)
    if sums:
        add_(sums, terms)
