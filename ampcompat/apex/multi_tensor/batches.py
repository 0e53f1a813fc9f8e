"""Lists of mixed tensors, taken apart into batches that can be computed on, and written back.

Owns: grouping by device and dtypes, widening, rounding back; the flag that these functions share.
Must not touch: formulas.
The surprise: tensors in float32 are computed on in place; only narrower ones are copied and written back.
"""

import torch

from ...parts import tensors
from . import lists


def alike(tensor_lists):
    """Yield (row numbers, the lists' tensors of those rows): rows of one device and of the same dtypes."""
    batches = {}
    for row, row_tensors in enumerate(zip(*tensor_lists)):
        if row_tensors[0].numel():
            key = (row_tensors[0].device,) + tuple(tensor.dtype for tensor in row_tensors)
            batches.setdefault(key, []).append(row)
    for rows in batches.values():
        yield rows, [[tensor_list[row] for row in rows] for tensor_list in tensor_lists]


def wide(batch):
    """Return tensors of one dtype in the dtype to compute in: themselves, if that is theirs."""
    dtype = lists.wide_dtype(batch[0].dtype)
    return batch if batch[0].dtype == dtype else [tensor.to(dtype) for tensor in batch]


def write_back(given, computed):
    """Round lists that ``wide`` had to copy into the tensors that were given."""
    for targets, sources in zip(given, computed):
        if targets is not sources:
            tensors.copy_(targets, sources)


def update(noop_flag, tensor_lists, length, rule):
    """Call ``rule`` with widened batches of the first ``length`` lists, gradients first; write all but those back.

    Nothing happens where the flag is set. A further list is of copies of the params (the second list) in another dtype,
    and gets their new values.
    """
    if is_set(noop_flag):
        return
    with torch.no_grad():
        for _, batch in alike(tensor_lists):
            computed = [wide(each) for each in batch[:length]]
            rule(*computed)
            write_back(batch[1:length], computed[1:])
            if len(batch) > length:
                tensors.copy_(batch[length], computed[1])


def is_set(noop_flag):
    """Return whether the flag is set; waits for the device."""
    return bool((noop_flag != 0).any())


def flag_unless_finite(noop_flag, batch):
    """Set the flag if a tensor of the batch holds inf or nan; nothing is read."""
    largest = lists.norms(batch, float("inf"))
    bad = (largest - largest != 0).any().to(noop_flag.device, noop_flag.dtype)
    noop_flag.copy_(noop_flag | bad)


def scaled(batch, factor):
    """Return the batch multiplied by a tensor of shape ()."""
    results = lists.mul(batch, 1.0)
    lists.scale_(results, factor.to(batch[0].device))
    return results


def shapeless(value):
    """Return a tensor of one element as one of shape (); a number stays what it is."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value
