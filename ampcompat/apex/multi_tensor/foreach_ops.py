"""Arithmetic on lists of tensors of one device and dtype, for optimizer updates, and the splitting of mixed lists.

Each operation uses ``torch._foreach_*`` if torch has it and a loop otherwise. Norms of lists, and writes that a flag on
the device can suppress, are here too. Mixed lists are split into batches of one device and dtype and widened, and the
results are written back: float32 tensors are updated in place; only narrower ones are copied.
"""

import itertools
import operator

import torch

from ...support import tensor_lists
from ...support.torch_compat import features
from ...support.torch_compat.thread_blocks import grad_enabled


def _operation(name):
    """Return an operation on lists: torch's own if it has one, otherwise the tensor method in a loop.

    Every argument is a list as long as the first, or a number.
    """
    foreach = features.foreach(name)

    def operation(tensors, *others, **options):
        if not tensors:
            return []
        if foreach is not None:
            return foreach(tensors, *others, **options)
        columns = [other if isinstance(other, (list, tuple)) else itertools.repeat(other) for other in others]
        return [getattr(tensor, name)(*row, **options) for tensor, *row in zip(tensors, *columns)]

    return operation


add, add_, mul, mul_, div, div_ = map(_operation, ("add", "add_", "mul", "mul_", "div", "div_"))
sqrt, addcmul_, zero_ = map(_operation, ("sqrt", "addcmul_", "zero_"))


def scale_(tensors, factor):
    """Multiply tensors in place by a number, or by a tensor of shape ()."""
    mul_(tensors, _factors(tensors, factor))


def scaled(tensors, factor):
    """Return new tensors, multiplied by a number or by a tensor of one element."""
    if isinstance(factor, torch.Tensor):
        factor = factor.to(tensors[0]).reshape(())
    return mul(tensors, _factors(tensors, factor))


def _factors(tensors, factor):
    """Return the factor for ``mul``: one tensor for each if torch does not accept one tensor for all."""
    is_shared = not isinstance(factor, torch.Tensor) or features.has_foreach_mul_by_tensor()
    return factor if is_shared else [factor] * len(tensors)


# -- conditional writes: ``found_inf`` is a float32 tensor of shape () on the tensors' device, or None -----------------

# torch has no list operation that a flag on the device can suppress, except its fused SGD. With a suitable learning
# rate and weight decay, the fused SGD writes any weighted mean.


def update_average_(averages, weight, values, new_weight, found_inf=None):
    """``averages = weight * averages + new_weight * values``, unless ``found_inf`` is 1."""
    if found_inf is None:
        scale_(averages, weight)
        add_(averages, values, alpha=new_weight)
    elif weight == 0.0 or new_weight == 0.0:  # in two steps: the weights below would divide by 0, or lose digits
        _sgd_step_(averages, averages, 1.0 - weight, found_inf)
        _sgd_step_(averages, values, -new_weight, found_inf)
    else:
        _sgd_step_(averages, mul(values, -1.0), new_weight, found_inf, (1.0 - weight) / new_weight)


def update_square_average_(averages, weight, values, new_weight, found_inf=None):
    """``update_average_`` with the squares of ``values``."""
    if found_inf is None:
        if weight != 1.0:
            scale_(averages, weight)
        addcmul_(averages, values, values, value=new_weight)
    else:
        update_average_(averages, weight, mul(values, values), new_weight, found_inf)


def subtract_(tensors, updates, rate, found_inf=None):
    """Subtract ``rate`` times the updates, which may be overwritten; ``rate`` is a number or a tensor of shape ()."""
    if isinstance(rate, torch.Tensor):
        scale_(updates, rate)
        rate = 1.0
    if found_inf is None:
        add_(tensors, updates, alpha=-rate)
    else:
        _sgd_step_(tensors, updates, rate, found_inf)


def _sgd_step_(tensors, updates, rate, found_inf, decay=0.0):
    """``tensors -= rate * (updates + decay * tensors)``, unless ``found_inf`` is 1."""
    are_contiguous = all(tensor.is_contiguous() for tensor in itertools.chain(tensors, updates))
    if are_contiguous and features.has_flagged_sgd(found_inf.device.type):  # the kernels ignore strides
        options = {"weight_decay": decay, "momentum": 0.0, "lr": rate, "dampening": 0.0, "nesterov": False}
        options.update(maximize=False, is_first_step=False, grad_scale=None, found_inf=found_inf)
        if tensors:
            torch._fused_sgd_(tensors, updates, [], **options)
        return
    is_skipped = found_inf != 0
    for tensor, update in zip(tensors, updates):
        updated = tensor - rate * (update + decay * tensor)
        tensor.copy_(torch.where(is_skipped, tensor, updated))


# -- norms -------------------------------------------------------------------------------------------------------------


#: The size from which a norm on a CPU is computed by rows, the length of a row, and the number of elements cast at a
#: time.
MIN_ROWS_SIZE, ROW_LENGTH, CHUNK_SIZE = 1 << 16, 128, 1 << 18


def norms(tensors, order=2):
    """Return the norms of tensors, in at least float32, as one tensor of shape (n,); ``order`` may be infinity.

    The relative error is at most 1e-6, whatever the number of elements.
    """
    dtype = tensors[0].dtype
    is_wide = compute_dtype(dtype) == dtype
    if tensors[0].device.type == "cpu" and dtype != torch.float64 and 0 < order < float("inf"):
        large = {id(tensor): _norm_by_rows(tensor, order) for tensor in tensors if tensor.numel() >= MIN_ROWS_SIZE}
        if large:
            small = [tensor for tensor in tensors if id(tensor) not in large]
            others = iter(norms(small, order).unbind() if small else ())
            return torch.stack([large[id(tensor)] if id(tensor) in large else next(others) for tensor in tensors])
    if features.foreach_norm_takes(order, not is_wide):
        options = {} if is_wide else {"dtype": compute_dtype(dtype)}
        return torch.stack(list(torch._foreach_norm(tensors, order, **options)))
    tensors = tensors if is_wide else [tensor.to(compute_dtype(dtype)) for tensor in tensors]
    if order != float("inf"):
        return torch.stack([tensor.norm(order) for tensor in tensors])
    # tensor - tensor is 0, or nan for inf and nan. Needed because max() ignores nan in old torch.
    return torch.stack([tensor.abs().max() + (tensor - tensor).sum() for tensor in tensors])


def _norm_by_rows(tensor, order):
    """Return the norm of a tensor of at most float32 in float32, from the norms of rows, combined in float64.

    On a CPU, torch sums a tensor in one float32 accumulator per lane: with 33 million elements, the error is 1e-3.
    """
    flat = tensor.detach().reshape(-1)
    rows = []
    for chunk in flat.split(CHUNK_SIZE):
        chunk = chunk.to(torch.float32)
        end = len(chunk) // ROW_LENGTH * ROW_LENGTH
        rows.append(chunk[:end].view(-1, ROW_LENGTH).norm(order, 1))
        rows.append(chunk[end:].norm(order).reshape(1))
    return torch.cat(rows).to(torch.float64).norm(order).to(torch.float32)


def total_norm(groups, order=2):
    """Return the norm over all tensors in lists of tensors, on the device of the first; None without tensors."""
    group_norms = [norms(group, order) for group in groups]
    if not group_norms:
        return None
    dtype = max((each.dtype for each in group_norms), key=lambda each: torch.finfo(each).bits)
    joined = torch.cat([each.to(group_norms[0].device, dtype) for each in group_norms])
    return joined.max() if order == float("inf") else joined.norm(order)


def compute_dtype(dtype):
    """Return the dtype in which updates of a tensor are computed: its own, but at least float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def upcast(tensors, dtype=None, like=None):
    """Return tensors of one dtype cast to ``dtype``, their ``compute_dtype`` by default; unchanged if they have it.

    ``like``: tensors of that dtype and those shapes, so that one operation can make all copies.
    """
    dtype = compute_dtype(tensors[0].dtype) if dtype is None else dtype
    if tensors[0].dtype == dtype:
        return tensors
    if like is not None:
        return tensor_lists.widened(tensors, like)[0]
    return [tensor.to(dtype) for tensor in tensors]


_DEVICE, _DTYPE = map(operator.attrgetter, ("device", "dtype"))


def split_by_dtype(lists):
    """Yield (row numbers, the lists' tensors of those rows): rows of one device and of the same dtypes."""
    kinds = zip(map(_DEVICE, lists[0]), *[map(_DTYPE, each) for each in lists])
    batches = {}
    for row, kind in enumerate(kinds):
        if lists[0][row].numel():
            batches.setdefault(kind, []).append(row)
    for rows in batches.values():
        yield rows, [[tensor_list[row] for row in rows] for tensor_list in lists]


def write_back(given, computed):
    """Copy results back to the given tensors, with rounding, if ``foreach_ops.upcast`` made copies."""
    for targets, sources in zip(given, computed):
        if targets is not sources:
            tensor_lists.copy_(targets, sources)


def unflagged_batches(noop_flag, lists, on_device=True):
    """Yield the batches of ``split_by_dtype``, each with the flag on its device, as ``found_inf`` of ``updates``.

    If torch does not support a flag on the device, or ``on_device`` is false, the host reads it: either nothing is
    yielded, or None is yielded instead of the flag.
    """
    on_device = on_device and features.has_flagged_sgd(noop_flag.device.type)
    if not on_device and bool((noop_flag != 0).any()):
        return
    found_inf = (noop_flag != 0).any().to(torch.float32) if on_device else None
    for rows, batch in split_by_dtype(lists):
        yield rows, batch, None if found_inf is None else found_inf.to(batch[0][0].device)


def update(noop_flag, lists, length, update_batch, on_device=True):
    """Call ``update_batch`` with upcast batches of the first ``length`` lists, gradients first; write back the others.

    Nothing changes if the flag is set. An additional list has copies of the params (the second list) in another dtype,
    and gets their new values.
    """
    with grad_enabled(False):
        for _, batch, found_inf in unflagged_batches(noop_flag, lists, on_device):
            computed = [upcast(each) for each in batch[:length]]
            update_batch(*computed, found_inf=found_inf)
            write_back(batch[1:length], computed[1:])
            if len(batch) > length:
                tensor_lists.copy_(batch[length], computed[1])


def flag_non_finite(noop_flag, batch):
    """Set the flag if a tensor of the batch contains inf or nan, without a read by the host."""
    largest = norms(batch, float("inf"))
    bad = (largest - largest != 0).any().to(noop_flag.device, noop_flag.dtype)
    noop_flag.copy_(noop_flag | bad)


def multiplied(batch, factor):
    """Return a batch times a factor, as new tensors; the batch itself if the factor is None or the number 1."""
    has_effect = isinstance(factor, torch.Tensor) or factor not in (None, 1.0)
    return scaled(batch, factor) if has_effect else batch


def to_scalar(value):
    """Return a tensor of one element as one of shape (); a number is returned as it is."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value
