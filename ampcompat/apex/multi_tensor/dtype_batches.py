"""Split lists of mixed tensors into batches of one device and dtype, widen them, and write results back.

Shared by ``apex.optimizers`` and the functions of ``amp_C``. float32 tensors are updated in place; only narrower ones
are copied and written back. The overflow flag of the functions of ``amp_C`` is handled here too.
"""

import operator

import torch

from ...support import tensor_lists as tensors
from ...support.torch_compat import features
from . import foreach_ops

_DEVICE, _DTYPE = map(operator.attrgetter, ("device", "dtype"))


def split_by_dtype(tensor_lists):
    """Yield (row numbers, the lists' tensors of those rows): rows of one device and of the same dtypes."""
    kinds = zip(map(_DEVICE, tensor_lists[0]), *[map(_DTYPE, each) for each in tensor_lists])
    batches = {}
    for row, kind in enumerate(kinds):
        if tensor_lists[0][row].numel():
            batches.setdefault(kind, []).append(row)
    for rows in batches.values():
        yield rows, [[tensor_list[row] for row in rows] for tensor_list in tensor_lists]


def write_back(given, computed):
    """Copy results back to the given tensors, with rounding, if ``foreach_ops.upcast`` made copies."""
    for targets, sources in zip(given, computed):
        if targets is not sources:
            tensors.copy_(targets, sources)


def unflagged_batches(noop_flag, tensor_lists, on_device=True):
    """Yield the batches of ``split_by_dtype``, each with the flag on its device, as ``found_inf`` of ``updates``.

    If torch does not support a flag on the device, or ``on_device`` is false, the host reads it: either nothing is
    yielded, or None is yielded instead of the flag.
    """
    on_device = on_device and features.has_flagged_sgd(noop_flag.device.type)
    if not on_device and bool((noop_flag != 0).any()):
        return
    found_inf = (noop_flag != 0).any().to(torch.float32) if on_device else None
    for rows, batch in split_by_dtype(tensor_lists):
        yield rows, batch, None if found_inf is None else found_inf.to(batch[0][0].device)


def update(noop_flag, tensor_lists, length, update_batch, on_device=True):
    """Call ``update_batch`` with upcast batches of the first ``length`` lists, gradients first; write back the others.

    Nothing changes if the flag is set. An additional list has copies of the params (the second list) in another dtype,
    and gets their new values.
    """
    with torch.no_grad():
        for _, batch, found_inf in unflagged_batches(noop_flag, tensor_lists, on_device):
            computed = [foreach_ops.upcast(each) for each in batch[:length]]
            update_batch(*computed, found_inf=found_inf)
            write_back(batch[1:length], computed[1:])
            if len(batch) > length:
                tensors.copy_(batch[length], computed[1])


def flag_non_finite(noop_flag, batch):
    """Set the flag if a tensor of the batch contains inf or nan, without a read by the host."""
    largest = foreach_ops.norms(batch, float("inf"))
    bad = (largest - largest != 0).any().to(noop_flag.device, noop_flag.dtype)
    noop_flag.copy_(noop_flag | bad)


def multiplied(batch, factor):
    """Return a batch times a factor, as new tensors; the batch itself if the factor is None or the number 1."""
    has_effect = isinstance(factor, torch.Tensor) or factor not in (None, 1.0)
    return foreach_ops.scaled(batch, factor) if has_effect else batch


def to_scalar(value):
    """Return a tensor of one element as one of shape (); a number is returned as it is."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value
