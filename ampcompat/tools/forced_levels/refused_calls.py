"""Calls that torch refuses in half precision, and that a script has because it was written in float32.

``scores.masked_fill(mask, -1e9)``: float16 has no such value, so the call raises an error; under a forced level the
value is the smallest finite one. ``values[mask] = network(inputs)``: assignments by indices take a source of their own
dtype only; the source is cast to it, as ``copy_`` casts. Calls that torch accepts are not changed.
``binary_cross_entropy`` of half probabilities is refused at O1 and O4, as in Apex. A forced level cannot change the
line of the script, so it is computed in float32, and so is ``sigmoid`` from then on: a float32 loss of half
probabilities would still have gradients outside of the range of half.

All of this ends with the forced level. A script that calls ``amp.initialize`` itself gets torch's errors, as with Apex.
"""

import functools
import math
import numbers

import torch

from ...engine.op_table import expansion
from ...support.nested import map_arguments
from ...support.script_frames import script_line

_HALF = (torch.float16, torch.bfloat16)
_FLOATING = _HALF + (torch.float32, torch.float64)
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in _HALF}

#: Methods that refuse values out of the range of the tensor's dtype: name -> positions and keywords of the values.
VALUES = {
    "masked_fill": ((2, "value"),),
    "index_fill": ((3, "value"),),
    "scatter": ((3, "value"),),
    "fill_": ((1, "value"),),
    "fill_diagonal_": ((1, "fill_value"),),
    "full_like": ((1, "fill_value"),),
    "new_full": ((2, "fill_value"),),
    "clamp": ((1, "min"), (2, "max")),
    "clip": ((1, "min"), (2, "max")),
    "clamp_min": ((1, "min"),),
    "clamp_max": ((1, "max"),),
    "pad": ((3, "value"),),
}
#: Methods that refuse a source of another dtype: name -> its position and keyword.
SOURCES = {
    "__setitem__": (2, "value"),
    "index_put": (2, "values"),
    "index_add": (3, "source"),
    "index_copy": (3, "source"),
    "index_reduce": (3, "source"),
    "scatter": (3, "src"),
    "scatter_add": (3, "src"),
    "scatter_reduce": (3, "src"),
    "masked_scatter": (2, "source"),
    "put": (2, "source"),
}
_OWNERS = (torch.Tensor, torch, torch.nn.functional)
_SIGMOIDS = ((torch, "sigmoid"), (torch.Tensor, "sigmoid"), (torch.special, "expit"))


def accept(session, patches):
    """Let torch accept such calls until ``patches`` is undone.

    Args:
        session: the ``Session`` of a forced level, whose own patches are there already.
        patches: a ``PatchStack``; it must be undone before the session is closed.
    """
    policy = session.policy
    if policy.dtypes.low not in _HALF or not (policy.casts_model or policy.patch_torch_functions):
        return
    promoted = {row.name for row in expansion.rows()} if policy.patch_torch_functions else set()
    for name, place in SOURCES.items():
        _patch(patches, name, _with_source, place, promoted)
    for name, places in VALUES.items():
        _patch(patches, name, _in_range, places, set())
    if policy.patch_torch_functions:
        owner, name = torch.nn.functional, "binary_cross_entropy"
        patches.set(owner, name, _in_float32(getattr(owner, name), session, patches))


def _patch(patches, name, wrap, places, excluded):
    for method in (name, name + "_"):
        for owner in _OWNERS:
            if method not in excluded and callable(getattr(owner, method, None)):
                patches.set(owner, method, wrap(getattr(owner, method), places))


def _in_range(call, places):
    """Return a function that replaces finite numbers outside of the range of half by the largest or smallest of it."""

    @functools.wraps(call)
    def in_range(*args, **kwargs):
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.dtype in _LARGEST:
            largest = _LARGEST.get(kwargs.get("dtype") or first.dtype)
            if largest is not None:
                args, kwargs = _replaced(args, kwargs, places, lambda value: _clamped(value, largest))
        return call(*args, **kwargs)

    return in_range


def _clamped(value, largest):
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        if not largest < abs(value) < math.inf:  # nan and inf too
            return value
        return math.copysign(largest, value)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _FLOATING[2:]:
        return torch.where(value.isinf(), value, value.clamp(-largest, largest))
    return value


def _with_source(call, place):
    """Return a function that casts the source to the dtype of the tensor that it is written to."""

    @functools.wraps(call)
    def with_source(*args, **kwargs):
        first = args[0] if args else None
        if len(args) > 1 and isinstance(first, torch.Tensor) and first.dtype in _FLOATING:
            dtype = first.dtype
            args, kwargs = _replaced(args, kwargs, (place,), lambda source: _cast(source, dtype, args[1]))
        return call(*args, **kwargs)

    return with_source


def _cast(source, dtype, index):
    if not isinstance(source, torch.Tensor) or source.dtype is dtype or source.dtype not in _FLOATING:
        return source
    if source.dtype not in _HALF and dtype not in _HALF:
        return source  # float64 and float32: no level makes these
    if source.dim():
        return source.to(dtype)
    is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool
    return _clamped(source, _LARGEST[dtype]) if is_mask and dtype in _LARGEST else source


def _replaced(args, kwargs, places, replace):
    """Return ``args`` and ``kwargs`` with what ``replace`` makes of the arguments at ``places``."""
    for position, keyword in places:
        if position < len(args):
            value = args[position]
            replacement = replace(value)
            if replacement is not value:
                args = args[:position] + (replacement,) + args[position + 1 :]
        elif keyword in kwargs:
            kwargs = dict(kwargs, **{keyword: replace(kwargs[keyword])})
    return args, kwargs


def _in_float32(call, session, patches):
    """Return ``binary_cross_entropy`` that takes half probabilities."""

    @functools.wraps(call)
    def in_float32(*args, **kwargs):
        found = [each for each in args + tuple(kwargs.values()) if _is_half(each)]
        if found and session.cast_backend.active():
            _tell(found[0].dtype, session, patches)
            args, kwargs = map_arguments(lambda each: each.float() if _is_half(each) else each, args, kwargs)
        return call(*args, **kwargs)

    return in_float32


def _is_half(value):
    return isinstance(value, torch.Tensor) and value.dtype in _HALF


def _tell(dtype, session, patches):
    """At the first call say what happens, and compute probabilities in float32 from now on."""
    if getattr(torch.sigmoid, "is_float32", False):
        return
    name = str(dtype).replace("torch.", "")
    session.notices.say(
        "ampcompat: {}:{}: binary_cross_entropy of {} probabilities is computed in float32, and from now on sigmoid "
        "too, as the gradient of half probabilities leaves the range of half. binary_cross_entropy_with_logits "
        "needs no such exception.".format(*script_line(), name)
    )
    for owner, function in _SIGMOIDS:
        if hasattr(owner, function):
            patches.set(owner, function, _wide_sigmoid(getattr(owner, function), session))


def _wide_sigmoid(call, session):
    @functools.wraps(call)
    def sigmoid(input, *args, **kwargs):
        if _is_half(input) and "out" not in kwargs and session.cast_backend.active():
            input = input.float()
        return call(input, *args, **kwargs)

    sigmoid.is_float32 = True
    return sigmoid
