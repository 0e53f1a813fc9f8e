"""Numbers outside the range of half, which torch refuses to write into half tensors.

``scores.masked_fill(mask, -1e9)``: float16 has no such value, so the call raises an error. The lowest finite number is
written instead. Calls that torch accepts are not changed.
"""

import functools
import math
import numbers

import torch

from ..op_table.function_facts import FACTS, having
from . import other_patches, torch_compile

#: As in ``torch.finfo``, which aborts the process for bfloat16 in torch 1.3 to 1.5.
LARGEST = {torch.float16: 65504.0, torch.bfloat16: (2 - 2.0**-7) * 2.0**127}
_WIDE = (torch.float32, torch.float64)
_OWNERS = (torch.Tensor, torch, torch.nn.functional)


def accept(patches):
    """Make torch's functions that write numbers into half tensors accept those outside the range of half."""
    originals = []
    for name in sorted(having("numbers")):
        for method in (name, name + "_"):
            for owner in _OWNERS:
                call = getattr(owner, method, None)
                if callable(call):
                    originals.append((owner, method, call))
                    patches.set(owner, method, _in_range(call, FACTS[name].numbers))
    other_patches.script_originals(originals, patches)


def _in_range(call, places):
    @functools.wraps(call)
    def in_range(*args, **kwargs):
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.dtype in LARGEST:
            largest = LARGEST.get(kwargs.get("dtype") or first.dtype)
            if largest is not None:
                args, kwargs = replaced(args, kwargs, places, lambda value: clamped(value, largest))
        return call(*args, **kwargs)

    setattr(in_range, torch_compile.MARK, True)
    return in_range


def clamped(value, largest):
    """Return a number, or a tensor of one, within the finite range of half; inf, nan and other values unchanged."""
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        if not largest < abs(value) < math.inf:  # nan and inf too
            return value
        return math.copysign(largest, value)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _WIDE:
        return torch.where(abs(value) == math.inf, value, value.clamp(-largest, largest))
    return value


def replaced(args, kwargs, places, replace):
    """Return ``args`` and ``kwargs`` with ``replace`` applied to the arguments at ``places``: (position, keyword)."""
    for position, keyword in places:
        if position < len(args):
            value = args[position]
            replacement = replace(value)
            if replacement is not value:
                args = args[:position] + (replacement,) + args[position + 1 :]
        elif keyword in kwargs:
            kwargs = dict(kwargs, **{keyword: replace(kwargs[keyword])})
    return args, kwargs
