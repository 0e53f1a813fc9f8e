"""Arithmetic over lists of tensors of one device and dtype, for the updates of optimizers.

Owns: the choice between ``torch._foreach_*`` and a loop, operation by operation, and norms of lists.
Must not touch: which tensors, and why.
The surprise: a factor may be a tensor of shape (); it is repeated into a list, because torch multiplies a list by one
tensor only since 2.1. The number of dispatched operations stays the same.
"""

import itertools

import torch


def _operation(name):
    """Return an operation over lists: torch's own where it has one, else that tensor method in a loop.

    Every argument is a list as long as the first, or a number.
    """
    foreach = getattr(torch, "_foreach_" + name, None)

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
    mul_(tensors, [factor] * len(tensors) if isinstance(factor, torch.Tensor) else factor)


def blend_(averages, weight, news, new_weight):
    """Let every average be ``weight`` times itself plus ``new_weight`` times what is new."""
    scale_(averages, weight)
    add_(averages, news, alpha=new_weight)


def subtract_(tensors, updates, rate):
    """Subtract ``rate`` times the updates, which are used up; ``rate`` is a number or a tensor of shape ()."""
    if isinstance(rate, torch.Tensor):
        scale_(updates, rate)
        rate = 1.0
    add_(tensors, updates, alpha=-rate)


def norms(tensors, order=2):
    """Return the norms of tensors as one tensor of shape (n,): 2-norms, or the largest absolute values for ``inf``."""
    foreach = getattr(torch, "_foreach_norm", None)
    # That operation takes infinity since the release that also brought _foreach_max.
    if foreach is not None and (order == 2 or hasattr(torch, "_foreach_max")):
        return torch.stack(list(foreach(tensors, order)))
    if order == 2:
        return torch.stack([tensor.norm() for tensor in tensors])
    # tensor - tensor is 0, or nan where it is inf or nan: the largest value of old torch overlooks nan.
    return torch.stack([tensor.abs().max() + (tensor - tensor).sum() for tensor in tensors])


def wide_dtype(dtype):
    """Return the dtype in which updates of a tensor are computed: its own, float32 at least."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
