"""Arithmetic over lists of tensors of one device and dtype, for the updates of optimizers.

Owns: the choice between ``torch._foreach_*`` and a loop, operation by operation, norms of lists, and writes that a flag
on the device may forbid.
Must not touch: which tensors, and why.
The surprise: torch has no operation that writes to a list of tensors or not, as a flag says. Its fused SGD does, and
with a rate and a decay that are no rate and no decay it writes any weighted mean.
"""

import itertools

import torch

from ...tables import torch_facts


def _operation(name):
    """Return an operation over lists: torch's own where it has one, else that tensor method in a loop.

    Every argument is a list as long as the first, or a number.
    """
    foreach = torch_facts.foreach(name)

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
    if isinstance(factor, torch.Tensor) and tensors and not torch_facts.has_foreach_mul_by_tensor():
        factor = [factor] * len(tensors)
    mul_(tensors, factor)


def zero_(tensors):
    """Set tensors to 0."""
    if torch_facts.has_foreach_zero() and tensors:
        torch._foreach_zero_(tensors)
        return
    for tensor in tensors:
        tensor.zero_()


# -- writes that a flag may forbid: ``skip`` is a float32 tensor of shape () on the tensors' device, or None -----------


def blend_(averages, weight, news, new_weight, skip=None):
    """Let every average be ``weight`` times itself plus ``new_weight`` times what is new; not where ``skip`` is 1."""
    if skip is None:
        scale_(averages, weight)
        add_(averages, news, alpha=new_weight)
    elif weight == 0.0 or new_weight == 0.0:  # in two steps: the weights below would divide by 0, or lose digits
        _descend_(averages, averages, 1.0 - weight, skip)
        _descend_(averages, news, -new_weight, skip)
    else:
        _descend_(averages, mul(news, -1.0), new_weight, skip, (1.0 - weight) / new_weight)


def accumulate_squares_(averages, weight, news, new_weight, skip=None):
    """``blend_`` with the squares of what is new."""
    if skip is None:
        if weight != 1.0:
            scale_(averages, weight)
        addcmul_(averages, news, news, value=new_weight)
    else:
        blend_(averages, weight, mul(news, news), new_weight, skip)


def subtract_(tensors, updates, rate, skip=None):
    """Subtract ``rate`` times the updates, which are used up; ``rate`` is a number or a tensor of shape ()."""
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
    if alike and torch_facts.has_flagged_sgd(skip.device.type):  # its kernels walk through memory, whatever the strides
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


def norms(tensors, order=2):
    """Return the norms of tensors, of float32 at least, as one tensor of shape (n,); ``order`` may be infinity."""
    dtype = tensors[0].dtype
    is_wide = wide_dtype(dtype) == dtype
    if torch_facts.foreach_norm_takes(order, not is_wide):
        options = {} if is_wide else {"dtype": wide_dtype(dtype)}
        return torch.stack(list(torch._foreach_norm(tensors, order, **options)))
    tensors = tensors if is_wide else [tensor.to(wide_dtype(dtype)) for tensor in tensors]
    if order != float("inf"):
        return torch.stack([tensor.norm(order) for tensor in tensors])
    # tensor - tensor is 0, or nan where it is inf or nan: the largest value of old torch overlooks nan.
    return torch.stack([tensor.abs().max() + (tensor - tensor).sum() for tensor in tensors])


def wide_dtype(dtype):
    """Return the dtype in which updates of a tensor are computed: its own, float32 at least."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
