"""The wrappers that apply the rules of the op table to one call.

They run at every call of every function in the table, so each rule is a small closure of its own, which first checks
whether it has to do anything.
"""

import functools

import torch

from ...errors import AmpNotImplementedError
from ...support.containers import BYTES, CONTAINERS, METHODS, floating_tensors, map_arguments
from ..op_table import expansion
from ..op_table.cast_rules import LINALG, MATRIX_POWER, SPARSE, TAKES_SPARSE
from . import emulated_half_arithmetic
from .argument_casts import cast_to, widest
from .torch_compile import MARK, is_compiling, is_tracing

#: Functions (row, wrapper) -> function that are put around each wrapper that is made while they are here: observers.
around = []

_Tensor, _Parameter, _float64, _strided = torch.Tensor, torch.nn.Parameter, torch.float64, torch.strided
_PLAIN_TENSORS = frozenset([_Tensor, _Parameter])
#: Types of arguments that hold no tensors, alone or in one of these sequences.
_NO_TENSORS = frozenset([int, float, bool, str, type(None), torch.dtype])
_SEQUENCES = (tuple, list, torch.Size)
_OTHERWISE = "_ampcompat_otherwise"
_MAY_HOLD_TENSORS = (_Tensor,) + CONTAINERS


def _half(function, caster):
    """Cast every floating tensor to the low dtype."""
    is_exempt, to_low = caster.is_exempt, caster.to_low

    @functools.wraps(function)
    def in_half(*args, **kwargs):
        if is_exempt(args, kwargs):
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = map_arguments(to_low, args, kwargs)
            return function(*args, **kwargs)
        return function(*map(to_low, args))

    return in_half


def _float(function, caster, key=None):
    """Cast every floating tensor that is narrower than the high dtype to it.

    Args:
        key: the name under which ``CastDevices.rows`` has the row where autocast applies it by itself.
    """
    is_exempt, switch, local = caster.is_exempt, caster.switch, caster.switch.local
    flags, to_high, high, narrow = switch.flags, caster.to_high, METHODS[caster.high], caster.narrow

    @functools.wraps(function)
    def in_float(*args, **kwargs):
        tracing = is_tracing()  # first: torch.compile cannot guard on all that follows
        if (
            not tracing
            and local.entered is switch.devices
            and key in switch.devices.rows
            and args
            and type(args[0]) in _PLAIN_TENSORS
        ):
            return function(*args, **kwargs)
        first = args[0] if args else None
        # As ``is_exempt`` in the most common case, without a call of a Python function.
        if (
            tracing
            or local.off
            or not (type(first) in _PLAIN_TENSORS and switch.devices.has(first) and first.dim())
            or (flags is not None and not flags.is_enabled())
            or (kwargs and not _NO_TENSORS.issuperset(map(type, kwargs.values())))
        ):
            if is_exempt(args, kwargs):
                return function(*args, **kwargs)
            args, kwargs = map_arguments(to_high, args, kwargs)
            return function(*args, **kwargs)
        inputs = []
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN_TENSORS:
                arg = high(arg) if arg.dtype in narrow else arg
            elif kind not in _NO_TENSORS and not (kind in _SEQUENCES and _NO_TENSORS.issuperset(map(type, arg))):
                arg = to_high(arg)
            inputs.append(arg)
        return function(*inputs, **kwargs)

    return in_float


def norm_in_float32(function, caster):
    """Cast to the high dtype, but leave a call alone that asks for a narrower result, which torch refuses then."""
    with_casts = _float(function, caster)

    @functools.wraps(function)
    def norm(*args, **kwargs):
        return function(*args, **kwargs) if kwargs.get("dtype") in caster.narrow else with_casts(*args, **kwargs)

    return norm


def half_emulated(function, caster, always=True):
    """Cast to the low dtype, but on a CPU compute in the high dtype, with inputs and results rounded to the low one.

    Args:
        always: False means only if an argument is sparse, as torch lacks most half kernels for sparse tensors.
    """
    is_exempt, paused = caster.is_exempt, caster.paused

    @functools.wraps(function)
    def in_half(*args, **kwargs):
        if is_exempt(args, kwargs):
            return function(*args, **kwargs)
        if (
            not (always or _has_sparse(args))
            or is_compiling()
            or "out" in kwargs
            or not emulated_half_arithmetic.is_for(args)
        ):
            args, kwargs = map_arguments(caster.to_low, args, kwargs)
            return function(*args, **kwargs)
        call = emulated_half_arithmetic.EmulatedCall(caster.low, caster.high, caster.rounded_weight)
        with paused():
            return call.computed(function, args, kwargs, call.rounded)

    return in_half


def inverted_in_float32(in_half, function, caster):
    """Call ``in_half``, but compute a negative power of a matrix in the high dtype and round it to the low one."""
    is_exempt, paused = caster.is_exempt, caster.paused

    @functools.wraps(function)
    def matrix_power(*args, **kwargs):
        power = kwargs["n"] if "n" in kwargs else (args + (0, 0))[1]
        if power >= 0 or "out" in kwargs or is_exempt(args, kwargs):
            return in_half(*args, **kwargs)
        args, kwargs = map_arguments(caster.to_high, args, kwargs)
        with paused():
            return emulated_half_arithmetic.round_results(function(*args, **kwargs), caster.low)

    return matrix_power


def _has_sparse(args):
    for arg in args:
        if isinstance(arg, _Tensor) and arg.layout is not torch.strided:
            return True
    return False


def is_alike(args):
    """Return whether all floating tensors are known to have one dtype: a fast check for the common case."""
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


def may_hold_tensors(values):
    """Return whether one of the values is a tensor, or a container, which may hold some."""
    return any(isinstance(value, _MAY_HOLD_TENSORS) for value in values)


def promoted(function, caster):
    """Cast every floating tensor to the widest dtype among them."""
    is_exempt = caster.is_exempt

    @functools.wraps(function)
    def in_widest(*args, **kwargs):
        if is_alike(args) and not (kwargs and may_hold_tensors(kwargs.values())):
            return function(*args, **kwargs)
        if is_exempt(args, kwargs):
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
    return map_arguments(cast_to(dtype), args, kwargs)


def float_in_place(function, caster):
    """In-place form of a float function: for a low ``self`` compute in the high dtype and copy the result back."""
    is_exempt, to_high, narrow = caster.is_exempt, caster.to_high, caster.narrow

    @functools.wraps(function)
    def written_back(self, *args, **kwargs):
        if is_exempt((self,), kwargs):
            return function(self, *args, **kwargs)
        args, kwargs = map_arguments(to_high, args, kwargs)
        if not isinstance(self, _Tensor) or self.dtype not in narrow:
            return function(self, *args, **kwargs)
        # The in-place form runs on a copy, so that the function needs no out-of-place form.
        wide = self.to(caster.high)
        with caster.paused():
            result = function(wide, *args, **kwargs)
            return result if result is NotImplemented else self.copy_(result)

    return written_back


def follow_self(function, caster):
    """In-place form of a half or promoted function: cast the other arguments to the dtype of ``self``."""
    is_exempt, thread = caster.is_exempt, caster.switch.local
    by_dtype = {dtype: cast_to(dtype) for dtype in BYTES}

    @functools.wraps(function)
    def following(*args, **kwargs):
        if not is_tracing() and thread.off:  # in steps of optimizers, which consist of such calls: without a call
            return function(*args, **kwargs)
        if is_exempt(args, kwargs):
            return function(*args, **kwargs)
        if not args or not isinstance(args[0], _Tensor) or args[0].dtype not in BYTES:
            return function(*args, **kwargs)
        args, kwargs = map_arguments(by_dtype[args[0].dtype], args, kwargs)
        return function(*args, **kwargs)

    return following


def banned(function, caster, message=None):
    """Raise an error if a floating tensor is narrower than the high dtype; otherwise call the function as it is."""
    is_exempt, narrow = caster.is_exempt, caster.narrow

    @functools.wraps(function)
    def refused(*args, **kwargs):
        if is_exempt(args, kwargs):
            return function(*args, **kwargs)
        if any(tensor.dtype in narrow for tensor in floating_tensors(kwargs, floating_tensors(args, []))):
            raise AmpNotImplementedError(message or expansion.BANNED_MESSAGE)
        return function(*args, **kwargs)

    return refused


def no_nested_casts(function, caster):
    """Run the function with casts off inside."""
    is_exempt, paused = caster.is_exempt, caster.paused

    @functools.wraps(function)
    def alone(*args, **kwargs):
        if is_exempt(args, kwargs):
            return function(*args, **kwargs)
        with paused():
            return function(*args, **kwargs)

    return alone


def float32_inside(function, caster, name):
    """On a CPU compute low inputs in the high dtype and return the low one; elsewhere leave the call alone."""
    is_exempt, low = caster.is_exempt, caster.low
    repeats = emulated_half_arithmetic.repeats_elements if name == "pad" else None  # old torch's is called ``_pad``

    @functools.wraps(function)
    def in_own_dtype(*args, **kwargs):
        if is_exempt(args, kwargs) or not emulated_half_arithmetic.is_for(args) or args[0].dtype is not low:
            return function(*args, **kwargs)
        if repeats is not None and not repeats(args, kwargs):
            return function(*args, **kwargs)
        args, kwargs = map_arguments(caster.to_high, args, kwargs)
        return emulated_half_arithmetic.round_results(function(*args, **kwargs), low)

    return in_own_dtype


def _left_to_autocast(wrapper, function, key, caster):
    """Call the function for what autocast casts to half by itself, ``wrapper`` for the rest.

    It checks that autocast does, in this thread and for these arguments, and whether it may use its copies of weights.

    Args:
        key: the name under which ``CastDevices.rows`` has the row where autocast applies it by itself.
    """
    switch, local = caster.switch, caster.switch.local
    has_right_copies, use_cache = caster.autocast_cache.has_right_copies, torch.set_autocast_cache_enabled

    @functools.wraps(function)
    def by_autocast(*args, **kwargs):
        devices, weights = switch.devices, []
        if is_tracing() or local.entered is not devices or key not in devices.rows:
            return wrapper(*args, **kwargs)
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN_TENSORS:
                if arg.dtype is _float64 or arg.layout is not _strided:
                    return wrapper(*args, **kwargs)
                if kind is _Parameter:
                    weights.append(arg)
                elif arg.is_leaf and arg.requires_grad:  # autocast would keep its copy, too
                    return wrapper(*args, **kwargs)
            elif kind not in _NO_TENSORS and not (kind in _SEQUENCES and _NO_TENSORS.issuperset(map(type, arg))):
                return wrapper(*args, **kwargs)
        if kwargs and not _NO_TENSORS.issuperset(map(type, kwargs.values())):
            return wrapper(*args, **kwargs)
        if not weights or local.copies is None:
            return function(*args, **kwargs)
        if not has_right_copies(weights):
            return wrapper(*args, **kwargs)
        use_cache(True)
        try:
            return function(*args, **kwargs)
        finally:
            use_cache(False)

    return marked(by_autocast, wrapper)


_WRAPPERS = {
    expansion.HALF: _half,
    expansion.PROMOTE: promoted,
    expansion.SEQUENCE: promoted,
    expansion.FLOAT_IN_PLACE: float_in_place,
    expansion.FOLLOW_SELF: follow_self,
}


def wrapped(function, row, caster, emulate=False):
    """Return ``function`` in the wrapper of its ``OpRow``.

    Args:
        emulate: half is emulated on this CPU. A user's own function gets real half tensors nevertheless.
    """
    if row.no_nested_casts or row.rule == expansion.PASSTHROUGH:
        function = marked(no_nested_casts(function, caster))
    if row.rule == expansion.PASSTHROUGH:
        return function
    if row.rule == expansion.BANNED:
        return marked(banned(function, caster, row.message))
    if row.rule == expansion.FLOAT and row.owner == LINALG:
        return marked(norm_in_float32(function, caster))
    if row.rule == expansion.FLOAT:
        return marked(_float(function, caster, row.name_for_autocast))
    if row.rule == expansion.FLOAT32_INSIDE:
        return marked(float32_inside(function, caster, row.name))
    wrapper = _WRAPPERS[row.rule](function, caster)
    if row.rule == expansion.HALF and row.source is not None:
        if emulate or row.name in TAKES_SPARSE or row.owner == SPARSE:
            wrapper = half_emulated(function, caster, always=emulate)
        if row.name == MATRIX_POWER:
            wrapper = inverted_in_float32(wrapper, function, caster)
    wrapper = marked(wrapper)
    if caster.switch.flags is not None and expansion.is_half_by_autocast(row):
        wrapper = _left_to_autocast(wrapper, function, row.name_for_autocast, caster)
    return wrapper


def marked(wrapper, otherwise=None):
    """Mark a wrapper for ``torch_compile``; ``otherwise`` is another one that it calls."""
    setattr(wrapper, MARK, True)
    setattr(wrapper, _OTHERWISE, otherwise)
    return wrapper


def codes(wrapper):
    """Return the code of a wrapper, and of the other one that it calls."""
    otherwise = getattr(wrapper, _OTHERWISE, None)
    return [each.__code__ for each in (wrapper, otherwise) if each is not None]
