"""Arithmetic over lists of tensors of one device and dtype, for optimizer updates.

Each operation uses ``torch._foreach_*`` where torch has it and a loop otherwise. Norms of lists, and writes that a
flag on the device may suppress, are here too.
"""

import itertools

import torch

from ...torch_compat import features


def _operation(name):
    """Return an operation over lists: torch's own where it has one, else that tensor method in a loop.

    Every argument is a list as long as the first, or a number.
    """
    foreach = features.foreach(name)

    def over_lists(firsts, *others, **options):
        if not firsts:
            return []
        if foreach is not None:
            return foreach(firsts, *others, **options)
        rows = zip(firsts, *[other if _is_list(other) else itertools.repeat(other) for other in others])
        return [getattr(row[0], name)(*row[1:], **options) for row in rows]

    return over_lists


def _is_list(argument):
    return isinstance(argument, (list, tuple))


add, add_, mul, mul_, div, div_ = map(_operation, ("add", "add_", "mul", "mul_", "div", "div_"))
sqrt, sqrt_, addcmul_ = map(_operation, ("sqrt", "sqrt_", "addcmul_"))


def scale_(tensors, factor):
    """Multiply tensors in place by a number, or by a tensor of shape ()."""
    if isinstance(factor, torch.Tensor) and tensors and not features.has_foreach_mul_by_tensor():
        factor = [factor] * len(tensors)
    mul_(tensors, factor)


def zero_(tensors):
    """Set tensors to 0."""
    if features.has_foreach_zero() and tensors:
        torch._foreach_zero_(tensors)
        return
    for tensor in tensors:
        tensor.zero_()


# -- conditional writes: ``skip`` is a float32 tensor of shape () on the tensors' device, or None ----------------------

# torch has no list operation that a flag on the device can suppress, except its fused SGD. With a suitable learning
# rate and weight decay the fused SGD writes any weighted mean.


def blend_(averages, weight, news, new_weight, skip=None):
    """``averages = weight * averages + new_weight * news``, unless ``skip`` is 1."""
    if skip is None:
        scale_(averages, weight)
        add_(averages, news, alpha=new_weight)
    elif weight == 0.0 or new_weight == 0.0:  # in two steps: the weights below would divide by 0, or lose digits
        _descend_(averages, averages, 1.0 - weight, skip)
        _descend_(averages, news, -new_weight, skip)
    else:
        _descend_(averages, mul(news, -1.0), new_weight, skip, (1.0 - weight) / new_weight)


def accumulate_squares_(averages, weight, news, new_weight, skip=None):
    """``blend_`` with the squares of ``news``."""
    if skip is None:
        if weight != 1.0:
            scale_(averages, weight)
        addcmul_(averages, news, news, value=new_weight)
    else:
        blend_(averages, weight, mul(news, news), new_weight, skip)


def subtract_(tensors, updates, rate, skip=None):
    """Subtract ``rate`` times the updates, which may be overwritten; ``rate`` is a number or a tensor of shape ()."""
    if isinstance(rate, torch.Tensor):
        scale_(updates, rate)
        rate = 1.0
    if skip is None:
        add_(tensors, updates, alpha=-rate)
    else:
        _descend_(tensors, updates, rate, skip)


def _descend_(tensors, directions, rate, skip, decay=0.0):
    """``tensors -= rate * (directions + decay * tensors)``, unless ``skip`` is 1."""
    alike = all(tensor.is_contiguous() for tensor in itertools.chain(tensors, directions))
    if alike and features.has_flagged_sgd(skip.device.type):  # the kernels ignore strides
        options = {"weight_decay": decay, "momentum": 0.0, "lr": rate, "dampening": 0.0, "nesterov": False}
        options.update(maximize=False, is_first_step=False, grad_scale=None, found_inf=skip)
        if tensors:
            torch._fused_sgd_(tensors, directions, [], **options)
        return
    forbidden = skip != 0
    for tensor, direction in zip(tensors, directions):
        found = tensor - rate * (direction + decay * tensor)
        tensor.copy_(torch.where(forbidden, tensor, found))


# -- norms -------------------------------------------------------------------------------------------------------------


#: Size from which a norm on a CPU is computed by rows, the length of a row, and how many elements are cast at a time.
LARGE, ROW, PIECE = 1 << 16, 128, 1 << 18


def norms(tensors, order=2):
    """Return the norms of tensors, of float32 at least, as one tensor of shape (n,); ``order`` may be infinity.

    The relative error is at most 1e-6, whatever the number of elements.
    """
    dtype = tensors[0].dtype
    is_wide = wide_dtype(dtype) == dtype
    if tensors[0].device.type == "cpu" and dtype != torch.float64 and 0 < order < float("inf"):
        large = {id(tensor): _norm_by_rows(tensor, order) for tensor in tensors if tensor.numel() >= LARGE}
        if large:
            small = [tensor for tensor in tensors if id(tensor) not in large]
            others = iter(norms(small, order).unbind() if small else ())
            return torch.stack([large[id(tensor)] if id(tensor) in large else next(others) for tensor in tensors])
    if features.foreach_norm_takes(order, not is_wide):
        options = {} if is_wide else {"dtype": wide_dtype(dtype)}
        return torch.stack(list(torch._foreach_norm(tensors, order, **options)))
    tensors = tensors if is_wide else [tensor.to(wide_dtype(dtype)) for tensor in tensors]
    if order != float("inf"):
        return torch.stack([tensor.norm(order) for tensor in tensors])
    # tensor - tensor is 0, or nan for inf and nan. Needed because max() ignores nan in old torch.
    return torch.stack([tensor.abs().max() + (tensor - tensor).sum() for tensor in tensors])


def _norm_by_rows(tensor, order):
    """Return the norm of a tensor of at most float32 in float32, by the norms of rows, combined in float64.

    On a CPU torch sums a tensor in one float32 accumulator per lane: with 33 million elements the error is 1e-3.
    """
    flat = tensor.detach().reshape(-1)
    rows = []
    for piece in flat.split(PIECE):
        piece = piece.to(torch.float32)
        whole = len(piece) // ROW * ROW
        rows.append(piece[:whole].view(-1, ROW).norm(order, 1))
        rows.append(piece[whole:].norm(order).reshape(1))
    return torch.cat(rows).to(torch.float64).norm(order).to(torch.float32)


def wide_dtype(dtype):
    """Return the dtype in which updates of a tensor are computed: its own, float32 at least."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
