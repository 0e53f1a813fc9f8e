"""The rules of the op table as wrappers: what happens around one call.

Owns: how each rule casts arguments.
Must not touch: torch's namespaces; a wrapper is handed back, others put it in place.
The surprise: these run at every call of every listed function, so each rule is its own small closure, and the first thing
that it does is ask whether it should do anything at all.
"""

import functools

import torch

from ..errors import AmpNotImplementedError
from ..parts import half_math
from ..tables import op_rules
from .casts import BYTES, CONTAINERS, cast_all, caster, floating_tensors, widest
from .compiling import MARK

_Tensor = torch.Tensor
_MAY_HOLD_TENSORS = (_Tensor,) + CONTAINERS


def half(function, casts):
    """Every floating tensor to the low dtype."""
    inactive, to_low = casts.inactive, casts.to_low

    @functools.wraps(function)
    def in_half(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = cast_all(to_low, args, kwargs)
            return function(*args, **kwargs)
        return function(*[to_low(arg) for arg in args])

    return in_half


def half_emulated(function, casts):
    """As ``half``, computed in the high dtype between rounded inputs and results where the CPU lacks half units."""
    inactive, is_compiling, paused = casts.inactive, casts.is_compiling, casts.paused

    @functools.wraps(function)
    def in_half(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if is_compiling() or "out" in kwargs or not half_math.is_for(args):
            args, kwargs = cast_all(casts.to_low, args, kwargs)
            return function(*args, **kwargs)
        call = half_math.WideCall(casts.low, casts.high)
        args, kwargs = cast_all(casts.rounding(call), args, kwargs)
        with paused():
            return call.run(function, args, kwargs)

    return in_half


def in_float(function, casts):
    """Every floating tensor that is narrower to the high dtype."""
    inactive, to_high = casts.inactive, casts.to_high

    @functools.wraps(function)
    def in_high(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = cast_all(to_high, args, kwargs)
            return function(*args, **kwargs)
        return function(*[to_high(arg) for arg in args])

    return in_high


def _is_alike(args):
    """Return whether arguments surely hold floating tensors of no more than one dtype: the common case, made fast."""
    first = None
    for arg in args:
        for value in (arg,) if isinstance(arg, _Tensor) else arg if type(arg) in (list, tuple) else (arg,):
            if isinstance(value, _Tensor):
                dtype = value.dtype
                if dtype is not first and dtype in BYTES:
                    if first is not None:
                        return False
                    first = dtype
            elif isinstance(value, CONTAINERS):
                return False
    return True


def _may_hold_tensors(values):
    return any(isinstance(value, _MAY_HOLD_TENSORS) for value in values)


def promoted(function, casts):
    """Every floating tensor to the widest dtype among them."""
    inactive = casts.inactive

    @functools.wraps(function)
    def in_widest(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if _is_alike(args) and not (kwargs and _may_hold_tensors(kwargs.values())):
            return function(*args, **kwargs)
        args, kwargs = _promote(args, kwargs)
        return function(*args, **kwargs)

    return in_widest


def _promote(args, kwargs):
    inputs = {name: value for name, value in kwargs.items() if name != "out"}
    found = floating_tensors(inputs, floating_tensors(args, []))
    dtype = widest([tensor.dtype for tensor in found])
    if all(tensor.dtype is dtype for tensor in found):
        return args, kwargs
    return cast_all(caster(dtype), args, kwargs)


def float_in_place(function, casts):
    """In-place form of a float function: on a low self it computes in the high dtype and writes back."""
    inactive, to_high, narrow = casts.inactive, casts.to_high, casts.narrow

    @functools.wraps(function)
    def written_back(self, *args, **kwargs):
        if inactive():
            return function(self, *args, **kwargs)
        args, kwargs = cast_all(to_high, args, kwargs)
        if not isinstance(self, _Tensor) or self.dtype not in narrow:
            return function(self, *args, **kwargs)
        # A copy of its own computes in place, so that the in-place form need not have another one beside it.
        wide = self.to(casts.high)
        with casts.paused():
            result = function(wide, *args, **kwargs)
            return result if result is NotImplemented else self.copy_(result)

    return written_back


def follow_self(function, casts):
    """In-place form of a half or promoted function: the other arguments to the dtype of self."""
    inactive = casts.inactive
    casters = {dtype: caster(dtype) for dtype in BYTES}

    @functools.wraps(function)
    def following(*args, **kwargs):
        if inactive():  # as in every step of an optimizer
            return function(*args, **kwargs)
        if not args or not isinstance(args[0], _Tensor) or args[0].dtype not in BYTES:
            return function(*args, **kwargs)
        args, kwargs = cast_all(casters[args[0].dtype], args, kwargs)
        return function(*args, **kwargs)

    return following


def banned(function, casts, message=None):
    """An error where a floating tensor is of the low dtype or another half; everything else runs as it is."""
    inactive, narrow = casts.inactive, casts.narrow

    @functools.wraps(function)
    def refused(*args, **kwargs):
        if not inactive() and any(t.dtype in narrow for t in floating_tensors(kwargs, floating_tensors(args, []))):
            raise AmpNotImplementedError(message or op_rules.BANNED_MESSAGE)
        return function(*args, **kwargs)

    return refused


def sealed(function, casts):
    """Run the function with casts off inside."""
    inactive, paused = casts.inactive, casts.paused

    @functools.wraps(function)
    def alone(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        with paused():
            return function(*args, **kwargs)

    return alone


def kept(function, casts):
    """On a CPU, low inputs computed in the high dtype and handed back in the low one; elsewhere left alone."""
    inactive, low = casts.inactive, casts.low

    @functools.wraps(function)
    def in_own_dtype(*args, **kwargs):
        if inactive() or not half_math.is_for(args) or args[0].dtype is not low:
            return function(*args, **kwargs)
        args, kwargs = cast_all(casts.to_high, args, kwargs)
        return half_math.round_results(function(*args, **kwargs), low)

    return in_own_dtype


_WRAPPERS = {
    op_rules.KEEP: kept,
    op_rules.HALF: half,
    op_rules.FLOAT: in_float,
    op_rules.PROMOTE: promoted,
    op_rules.SEQUENCE: promoted,
    op_rules.FLOAT_IN_PLACE: float_in_place,
    op_rules.FOLLOW_SELF: follow_self,
}


def wrapped(function, rule, casts, is_sealed=False, message=None, emulate=False):
    """Return ``function`` obeying ``rule``.

    Args:
        function: any callable.
        rule: one of ``op_rules.RULES``.
        casts: the backend's ``Casts``.
        is_sealed: keep casts out of what the function calls inside.
        message: what a banned function says.
        emulate: a function of torch's that is slow in half on this CPU; a user's own gets real half tensors.
    """
    if is_sealed or rule == op_rules.LEAVE:
        function = _marked(sealed(function, casts))
    if rule == op_rules.LEAVE:
        return function
    if rule == op_rules.BANNED:
        return _marked(banned(function, casts, message))
    wrap = half_emulated if emulate and rule == op_rules.HALF else _WRAPPERS[rule]
    return _marked(wrap(function, casts))


def _marked(wrapper):
    setattr(wrapper, MARK, True)
    return wrapper
