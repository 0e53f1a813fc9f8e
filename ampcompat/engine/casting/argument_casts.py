"""``ArgumentCaster``, which casts the arguments of one call, and ``CastDevices``, on which tensors are cast."""

import functools
from operator import attrgetter

import torch

from ...support.containers import BYTES, CONTAINERS, METHODS, floating_tensors, map_items
from . import emulated_half_arithmetic, torch_compile
from .weight_cache import AutocastCache, WeightCache, is_weight

_Tensor = torch.Tensor


class CastDevices:
    """The devices on which tensors are cast.

    Args:
        types: device types ("cpu", "cuda", …); None means all.
        rows: the names of the rows that autocast applies by itself on all of them.
    """

    def __init__(self, types=None, rows=frozenset()):
        self.types = None if types is None else frozenset(types)
        self.rows = rows
        #: tensor -> whether it is on one of these devices
        self.has = self._has
        if self.types is not None and len(self.types) == 1:  # the common case, made fast
            attribute = "is_" + "".join(self.types)
            self.has = attrgetter(attribute) if hasattr(_Tensor, attribute) else self._has

    def _has(self, tensor):
        return self.types is None or tensor.device.type in self.types

    def is_exempt(self, args, kwargs):
        """Return whether a call with these arguments is left alone because its tensors are on other devices.

        The floating tensors with dimensions decide; one on a cast device is enough. Tensors of shape () count only if
        there are no others, because torch accepts a CPU scalar together with tensors on any device.
        """
        if self.types is None:
            return False
        first = args[0] if args else None
        if isinstance(first, (tuple, list)) and first and isinstance(first[0], _Tensor):
            first = first[0]  # the first tensor of a sequence, as in ``cat``
            if self.has(first) and first.dim():
                return False
        found = floating_tensors(kwargs, floating_tensors(args, []))
        found = [tensor for tensor in found if tensor.dim()] or found
        return bool(found) and not any(map(self.has, found))

    def is_exempt_traced(self, args):
        """As ``is_exempt``, but by the first tensor alone: torch.compile does not trace ``has``."""
        for arg in args if self.types is not None else ():
            if isinstance(arg, _Tensor):
                return arg.device.type not in self.types
        return False


class ArgumentCaster:
    """Casts the arguments of one call: what the wrappers of one backend need from it.

    ``is_exempt(args, kwargs)`` returns whether a call is left alone: casts are off in this thread, or its tensors are
    on devices whose tensors are not cast. ``to_low(value)`` casts the floating tensors of a value to the low dtype, and
    ``rounded_weight(weight)`` returns a weight rounded to it, in the high one; copies of weights are cached.

    Args:
        switch: the ``thread_state.Switch``, which says whether casts are on in this thread, and on which devices.
        paused: a function that returns a context manager with casts off.
    """

    def __init__(self, dtypes, switch, paused):
        self.low, self.high = low, high = dtypes
        self.switch = switch
        self.paused = paused
        self.narrow = frozenset(dtype for dtype, size in BYTES.items() if size < BYTES[high])
        self.is_exempt = _exemption(switch)
        self.to_low = _cast_to_low(low, switch.local)
        self.autocast_cache = AutocastCache(switch.local)
        rounded = functools.partial(emulated_half_arithmetic.rounded, low=low, high=high)
        self.rounded_weight = WeightCache(rounded, switch.local).cast

    def to_high(self, value):
        """Return a value with its floating tensors no narrower than the high dtype."""
        if isinstance(value, _Tensor):
            return value.to(self.high) if value.dtype in self.narrow else value
        return map_items(self.to_high, value) if isinstance(value, CONTAINERS) else value


# What these two return is called at every call of every function of the table, or for every argument, so it uses
# closure variables instead of attributes.


def _exemption(switch):
    local, flags, is_tracing = switch.local, switch.flags, torch_compile.is_tracing

    def is_off_traced():
        if flags is None:
            return switch.is_off_somewhere
        # A compiler cannot follow thread-locals, and it guards on autocast's flags.
        return not torch_compile.is_autocast_enabled(flags.devices)

    def is_exempt(args, kwargs):
        if is_tracing():
            return is_off_traced() or switch.devices.is_exempt_traced(args)
        # as ``Switch.is_on``
        if local.off or (flags is not None and not flags.is_enabled() and local.entered is not None):
            return True
        devices, first = switch.devices, args[0] if args else None
        if isinstance(first, _Tensor) and devices.has(first) and first.dim():  # the most common case
            return False
        return devices.is_exempt(args, kwargs)

    return is_exempt


def _cast_to_low(low, thread):
    cached, is_tracing = WeightCache(METHODS[low], thread).cast, torch_compile.is_tracing
    not_low, convert = frozenset(BYTES) - frozenset([low]), METHODS[low]

    def to_low(value):
        if isinstance(value, _Tensor):
            if value.dtype not in not_low:
                return value
            # no caches in traced code
            is_kept = not is_tracing() and thread.copies is not None and is_weight(value)
            return cached(value) if is_kept else convert(value)
        return map_items(to_low, value) if isinstance(value, CONTAINERS) else value

    return to_low


def widest(dtypes):
    """Return the narrowest dtype that holds all of the given ones: float32 for float16 and bfloat16."""
    result = None
    for dtype in dtypes:
        if result is None or BYTES[dtype] > BYTES[result]:
            result = dtype
        elif dtype is not result and BYTES[dtype] == BYTES[result]:
            result = torch.float32
    return result


def cast_to(dtype):
    """Return a function that casts the floating tensors of a value to one dtype."""

    def cast(value):
        if isinstance(value, _Tensor):
            return value.to(dtype) if value.dtype in BYTES and value.dtype is not dtype else value
        return map_items(cast, value) if isinstance(value, CONTAINERS) else value

    return cast
