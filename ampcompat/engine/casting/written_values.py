"""What torch refuses to write into half tensors, or half values into others; it is written rounded, at O1 to O5.

``scores.masked_fill(mask, -1e9)``: float16 has no such number, so the call raises an error. The lowest finite number is
written instead. ``values[mask] = network(inputs)``: indexed writes accept only a source of the tensor's own dtype. The
source is cast to it, as by ``copy_``. Calls that torch accepts are not changed.
"""

import functools
import math
import numbers

import torch

from ..op_table.function_facts import FACTS, having
from . import other_patches
from .wrappers import marked

#: As in ``torch.finfo``, which aborts the process for bfloat16 in torch 1.3 to 1.5.
LARGEST = {torch.float16: 65504.0, torch.bfloat16: (2 - 2.0**-7) * 2.0**127}
_WIDE = (torch.float32, torch.float64)
_FLOATING = tuple(LARGEST) + _WIDE
_OWNERS = (torch.Tensor, torch, torch.nn.functional)


def accept(patches):
    """Make torch accept such calls, until ``patches`` is undone."""
    originals = []
    for column, wrap in (("numbers", _in_range), ("source", _with_source)):
        for name in sorted(having(column)):
            for method in (name, name + "_"):
                for owner in _OWNERS:
                    call = getattr(owner, method, None)
                    if callable(call):
                        originals.append((owner, method, call))
                        patches.set(owner, method, marked(wrap(call, getattr(FACTS[name], column))))
    other_patches.script_originals(originals, patches)


def _in_range(call, places):
    @functools.wraps(call)
    def in_range(*args, **kwargs):
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.dtype in LARGEST:
            largest = LARGEST.get(kwargs.get("dtype") or first.dtype)
            if largest is not None:
                args, kwargs = _replaced(args, kwargs, places, lambda value: _clamped(value, largest))
        return call(*args, **kwargs)

    return in_range


def _clamped(value, largest):
    """Return a number, or a tensor of one, within the finite range of half; inf, nan and other values unchanged."""
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        if not largest < abs(value) < math.inf:  # nan and inf too
            return value
        return math.copysign(largest, value)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _WIDE:
        return torch.where(abs(value) == math.inf, value, value.clamp(-largest, largest))
    return value


def _with_source(call, places):
    @functools.wraps(call)
    def with_source(*args, **kwargs):
        first = args[0] if args else None
        if len(args) > 1 and isinstance(first, torch.Tensor) and first.dtype in _FLOATING:
            dtype = first.dtype
            args, kwargs = _replaced(args, kwargs, places, lambda source: _cast(source, dtype, args[1]))
        return call(*args, **kwargs)

    return with_source


def _cast(source, dtype, index):
    if not isinstance(source, torch.Tensor) or source.dtype is dtype or source.dtype not in _FLOATING:
        return source
    if source.dtype not in LARGEST and dtype not in LARGEST:
        return source  # float64 and float32: no level causes these
    if source.dim():
        return source.to(dtype)
    is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool
    return _clamped(source, LARGEST[dtype]) if is_mask and dtype in LARGEST else source


def _replaced(args, kwargs, places, replace):
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
