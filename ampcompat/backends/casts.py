"""What a rule does to values: which dtypes are wide or narrow, and the walk over nested arguments.

Owns: ``Casts``, everything that a wrapper needs to know of its backend.
Must not touch: when to cast; that is the rules'.
The surprise: containers of numbers are walked at every call, so a container with nothing to cast comes back as it is, and
only tuples, lists and dicts are looked into, as Apex did.
"""

import torch

_Tensor = torch.Tensor
BYTES = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
CONTAINERS = (tuple, list, dict)


class Casts:
    """What every wrapper of one backend needs to know.

    Args:
        dtypes: the ``DtypePair``.
        inactive: a function of no arguments: whether casts are out of force here and now.
        paused: a function that returns a context manager with casts off.
        weight_cast: casts a tensor to the low dtype, once for a weight.
        rounded_weight: rounds a tensor to the low dtype and back for a ``half_math.WideCall``, once for a weight.
        is_compiling: whether a compiler is tracing; it must not meet caches.
    """

    def __init__(self, dtypes, inactive, paused, weight_cast, rounded_weight, is_compiling):
        self.low, self.high = dtypes
        self.inactive = inactive
        self.paused = paused
        self.rounded_weight = rounded_weight
        self.is_compiling = is_compiling
        self.narrow = frozenset(dtype for dtype, size in BYTES.items() if size < BYTES[self.high])
        self.to_low = _to_low(weight_cast, self.low)

    def to_high(self, value):
        """Return a value with its floating tensors no narrower than the high dtype."""
        if isinstance(value, _Tensor):
            return value.to(self.high) if value.dtype in self.narrow else value
        return nested(self.to_high, value) if isinstance(value, CONTAINERS) else value

    def rounding(self, call):
        """Return a function: value -> the value with its floating tensors rounded to the low dtype, in the high one.

        Args:
            call: the ``half_math.WideCall`` that they are for.
        """

        def rounded(value):
            if isinstance(value, _Tensor):
                return self.rounded_weight(value, call) if value.dtype in BYTES else value
            return nested(rounded, value) if isinstance(value, CONTAINERS) else value

        return rounded


def _to_low(weight_cast, low):
    """Return a function: value -> the value with its floating tensors in the low dtype, weights from the cache."""
    not_low = frozenset(BYTES) - frozenset([low])

    # Every argument of every product comes by here, so it holds what it needs instead of asking an object for it.
    def to_low(value):
        if isinstance(value, _Tensor):
            return weight_cast(value) if value.dtype in not_low else value
        return nested(to_low, value) if isinstance(value, CONTAINERS) else value

    return to_low


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


def cast_all(cast, args, kwargs):
    """Return arguments and keywords cast; ``out`` is left alone."""
    args = [cast(arg) for arg in args]
    if not kwargs:
        return args, kwargs
    return args, {name: value if name == "out" else cast(value) for name, value in kwargs.items()}


def floating_tensors(value, found):
    """Append the floating tensors within a value to a list."""
    if isinstance(value, _Tensor):
        if value.dtype in BYTES:
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
        if result is None or BYTES[dtype] > BYTES[result]:
            result = dtype
        elif dtype is not result and BYTES[dtype] == BYTES[result]:
            result = torch.float32
    return result


def caster(dtype):
    """Return a function that casts the floating tensors of a value to one dtype."""

    def cast(value):
        if isinstance(value, _Tensor):
            return value.to(dtype) if value.dtype in BYTES and value.dtype is not dtype else value
        return nested(cast, value) if isinstance(value, CONTAINERS) else value

    return cast
