"""Calls that torch refuses in half precision, in scripts written for float32.

``scores.masked_fill(mask, -1e9)``: see ``engine/casting/numbers_in_range``, which every session at O1 to O5 uses.
``values[mask] = network(inputs)``: indexed assignments accept only a source of their own dtype; the source is cast to
it, as by ``copy_``. Calls that torch accepts are not changed. ``binary_cross_entropy`` of half probabilities is refused
at O1 and O4, as in Apex. A forced level cannot change the line of the script, so it is computed in float32, and
``sigmoid`` is from then on too: a float32 loss of half probabilities would still have gradients outside of the range of
half.

All of this ends with the forced level. A script that calls ``amp.initialize`` itself gets torch's errors for the
others, as with Apex.
"""

import functools

import torch

from ...engine.casting.numbers_in_range import LARGEST, clamped, replaced
from ...engine.op_table import expansion
from ...support.nested import map_arguments
from ...support.patching import PatchStack
from ...support.script_frames import script_line
from ...support.torch_compat.torch_names import dtype_name

_HALF = (torch.float16, torch.bfloat16)
_FLOATING = _HALF + (torch.float32, torch.float64)

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
_SIGMOIDS = ((torch, "sigmoid"), (torch.Tensor, "sigmoid"), (getattr(torch, "special", torch), "expit"))


class AcceptedCalls:
    """Makes torch accept such calls in a session of a forced level.

    Args:
        session: the ``Session``, whose own patches have been applied.
    """

    def __init__(self, session):
        policy = session.policy
        self._session = session
        self._has_casts = bool(policy.patch_torch_functions)
        self._is_needed = policy.dtypes.low in _HALF and (policy.casts_model or self._has_casts)
        self._has_float32_sigmoid = False
        self._patches = PatchStack()

    def begin(self):
        """Patch torch until ``end``, which must come before the session is closed."""
        if not self._is_needed:
            return
        promoted = {row.name for row in expansion.rows()} if self._has_casts else set()
        for name, place in SOURCES.items():
            self._replace(name, _with_source, place, promoted)
        if self._has_casts:
            owner, name = torch.nn.functional, "binary_cross_entropy"
            self._patches.set(owner, name, self._in_float32(getattr(owner, name)))
        if self._has_float32_sigmoid:
            self._widen_sigmoid()
        self._patches.set(torch.jit, "script", self._scripting(torch.jit.script))

    def end(self):
        """Restore torch."""
        self._patches.undo()

    def _replace(self, name, wrap, places, excluded):
        for method in (name, name + "_"):
            for owner in _OWNERS:
                if method not in excluded and callable(getattr(owner, method, None)):
                    self._patches.set(owner, method, wrap(getattr(owner, method), places))

    def _scripting(self, script):
        @functools.wraps(script)
        def watched(obj, optimize=None, _frames_up=0, *args, **kwargs):
            self.end()  # the compiler looks up functions in ``torch``; the session restores those that it has replaced
            try:
                return script(obj, optimize, _frames_up + 1, *args, **kwargs)
            finally:
                self.begin()

        return watched

    def _in_float32(self, call):
        """Return a ``binary_cross_entropy`` that accepts half probabilities."""

        @functools.wraps(call)
        def in_float32(*args, **kwargs):
            found = [each for each in args + tuple(kwargs.values()) if _is_half(each)]
            if found and self._session.cast_backend.active():
                self._tell(found[0].dtype)
                args, kwargs = map_arguments(lambda each: each.float() if _is_half(each) else each, args, kwargs)
            return call(*args, **kwargs)

        return in_float32

    def _tell(self, dtype):
        """At the first call, print a notice, and compute probabilities in float32 from now on."""
        if self._has_float32_sigmoid:
            return
        self._has_float32_sigmoid = True
        name, (file, line) = dtype_name(dtype), script_line()
        self._session.notices.say(
            f"ampcompat: {file}:{line}: binary_cross_entropy of {name} probabilities is computed in float32, and from "
            "now on sigmoid too, as the gradient of half probabilities exceeds the range of half. "
            "binary_cross_entropy_with_logits needs no such exception."
        )
        self._widen_sigmoid()

    def _widen_sigmoid(self):
        for owner, name in _SIGMOIDS:
            if hasattr(owner, name):
                self._patches.set(owner, name, self._wide(getattr(owner, name)))

    def _wide(self, call):
        @functools.wraps(call)
        def sigmoid(input, *args, **kwargs):
            if _is_half(input) and "out" not in kwargs and self._session.cast_backend.active():
                input = input.float()
            return call(input, *args, **kwargs)

        return sigmoid


def _with_source(call, place):
    """Return a function that casts the source to the dtype of the tensor that it is written to."""

    @functools.wraps(call)
    def with_source(*args, **kwargs):
        first = args[0] if args else None
        if len(args) > 1 and isinstance(first, torch.Tensor) and first.dtype in _FLOATING:
            dtype = first.dtype
            args, kwargs = replaced(args, kwargs, (place,), lambda source: _cast(source, dtype, args[1]))
        return call(*args, **kwargs)

    return with_source


def _cast(source, dtype, index):
    if not isinstance(source, torch.Tensor) or source.dtype is dtype or source.dtype not in _FLOATING:
        return source
    if source.dtype not in _HALF and dtype not in _HALF:
        return source  # float64 and float32: no level causes these
    if source.dim():
        return source.to(dtype)
    is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool
    return clamped(source, LARGEST[dtype]) if is_mask and dtype in LARGEST else source


def _is_half(value):
    return isinstance(value, torch.Tensor) and value.dtype in _HALF
