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
from .compiling import MARK

_Tensor = torch.Tensor
_BYTES = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
_CONTAINERS = (tuple, list, dict)
_MAY_HOLD_TENSORS = (_Tensor,) + _CONTAINERS


class Casts:
    """What every wrapper of one backend needs to know.

    Args:
        dtypes: the ``DtypePair``.
        inactive: a function of no arguments: whether casts are out of force here and now.
        paused: a function that returns a context manager with casts off.
        weight_cast: casts a tensor to the low dtype, once for a weight.
        rounded_weight: as ``weight_cast``, rounded to the low dtype and back.
        is_compiling: whether a compiler is tracing; it must not meet caches.
    """

    def __init__(self, dtypes, inactive, paused, weight_cast, rounded_weight, is_compiling):
        self.low, self.high = dtypes
        self.inactive = inactive
        self.paused = paused
        self.weight_cast = weight_cast
        self.rounded_weight = rounded_weight
        self.is_compiling = is_compiling
        self.not_low = frozenset(_BYTES) - frozenset([self.low])
        self.narrow = frozenset(dtype for dtype, size in _BYTES.items() if size < _BYTES[self.high])

    def to_low(self, value):
        """Return a value with its floating tensors in the low dtype, weights from the cache."""
        if isinstance(value, _Tensor):
            return self.weight_cast(value) if value.dtype in self.not_low else value
        return nested(self.to_low, value) if isinstance(value, _CONTAINERS) else value

    def to_high(self, value):
        """Return a value with its floating tensors no narrower than the high dtype."""
        if isinstance(value, _Tensor):
            return value.to(self.high) if value.dtype in self.narrow else value
        return nested(self.to_high, value) if isinstance(value, _CONTAINERS) else value

    def rounded(self, value):
        """Return a value with its floating tensors rounded to the low dtype, in the high dtype."""
        if isinstance(value, _Tensor):
            return self.rounded_weight(value) if value.dtype in _BYTES else value
        return nested(self.rounded, value) if isinstance(value, _CONTAINERS) else value


def nested(cast, value):
    """Return a container with its items cast; the same object where none changed, the same type where one did."""
    if isinstance(value, dict):
        items = {key: cast(item) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        return items if type(value) is dict else type(value)(items)
    items = [cast(item) for item in value]
    if all(new is old for new, old in zip(items, value)):
        return value
    if hasattr(value, "_make"):
        return value._make(items)
    return items if type(value) is list else type(value)(items)


def _cast_all(cast, args, kwargs):
    args = [cast(arg) for arg in args]
    if not kwargs:
        return args, kwargs
    return args, {name: value if name == "out" else cast(value) for name, value in kwargs.items()}


def floating_tensors(value, found):
    """Append the floating tensors within a value to a list."""
    if isinstance(value, _Tensor):
        if value.dtype in _BYTES:
            found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            floating_tensors(item, found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            floating_tensors(item, found)
    return found


def widest(dtypes):
    """Return the narrowest dtype that holds all of the given ones: float16 and bfloat16 meet in float32."""
    result = None
    for dtype in dtypes:
        if result is None or _BYTES[dtype] > _BYTES[result]:
            result = dtype
        elif dtype is not result and _BYTES[dtype] == _BYTES[result]:
            result = torch.float32
    return result


def half(function, casts):
    """Every floating tensor to the low dtype."""
    inactive, to_low = casts.inactive, casts.to_low

    @functools.wraps(function)
    def in_half(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = _cast_all(to_low, args, kwargs)
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
            args, kwargs = _cast_all(casts.to_low, args, kwargs)
            return function(*args, **kwargs)
        args, kwargs = _cast_all(casts.rounded, args, kwargs)
        with paused():
            return half_math.round_results(function(*args, **kwargs), casts.low)

    return in_half


def in_float(function, casts):
    """Every floating tensor that is narrower to the high dtype."""
    inactive, to_high = casts.inactive, casts.to_high

    @functools.wraps(function)
    def in_high(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = _cast_all(to_high, args, kwargs)
            return function(*args, **kwargs)
        return function(*[to_high(arg) for arg in args])

    return in_high


def _is_alike(args):
    """Return whether arguments surely hold floating tensors of no more than one dtype: the common case, made fast."""
    first = None
    for arg in args:
        for value in arg if type(arg) in (list, tuple) else (arg,):
            if isinstance(value, _Tensor):
                if value.dtype is not first and value.dtype in _BYTES:
                    if first is not None:
                        return False
                    first = value.dtype
            elif isinstance(value, _CONTAINERS):
                return False
    return True


def promoted(function, casts):
    """Every floating tensor to the widest dtype among them."""
    inactive = casts.inactive

    @functools.wraps(function)
    def in_widest(*args, **kwargs):
        if inactive():
            return function(*args, **kwargs)
        if _is_alike(args) and not any(isinstance(value, _MAY_HOLD_TENSORS) for value in kwargs.values()):
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
    return _cast_all(_caster(dtype), args, kwargs)


def _caster(dtype):
    """Return a function that casts the floating tensors of a value to one dtype."""

    def cast(value):
        if isinstance(value, _Tensor):
            return value.to(dtype) if value.dtype in _BYTES and value.dtype is not dtype else value
        return nested(cast, value) if isinstance(value, _CONTAINERS) else value

    return cast


def float_in_place(function, casts):
    """In-place form of a float function: on a low self it computes in the high dtype and writes back."""
    inactive, to_high, narrow = casts.inactive, casts.to_high, casts.narrow

    @functools.wraps(function)
    def written_back(self, *args, **kwargs):
        if inactive():
            return function(self, *args, **kwargs)
        args, kwargs = _cast_all(to_high, args, kwargs)
        if not isinstance(self, _Tensor) or self.dtype not in narrow:
            return function(self, *args, **kwargs)
        # A copy of its own computes in place, so that the in-place form need not have another one beside it.
        wide = self.to(casts.high)
        with casts.paused():
            return self.copy_(function(wide, *args, **kwargs))

    return written_back


def follow_self(function, casts):
    """In-place form of a half or promoted function: the other arguments to the dtype of self."""
    inactive = casts.inactive
    casters = {dtype: _caster(dtype) for dtype in _BYTES}

    @functools.wraps(function)
    def following(self, *args, **kwargs):
        if inactive() or not isinstance(self, _Tensor) or self.dtype not in _BYTES:
            return function(self, *args, **kwargs)
        args, kwargs = _cast_all(casters[self.dtype], args, kwargs)
        return function(self, *args, **kwargs)

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
        args, kwargs = _cast_all(casts.to_high, args, kwargs)
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
