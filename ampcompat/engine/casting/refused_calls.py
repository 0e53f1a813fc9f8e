"""Calls that torch refuses because of half tensors, and would accept in float32. They are computed nevertheless:

| levels | refused | what is cast | dtype of the result |
|---|---|---|---|
| O1 to O5 | a number outside the range of half is written into a half tensor | to its largest or lowest | half |
| O1 to O5 | a tensor is written into one of another dtype, one of them half | to that dtype | that dtype |
| O2, O3, O5 | half and float32 in a product: a function with the rule "half" | to half | that of the first tensor |
| O2, O3, O5 | half and float32 in a function that ``refuses_mixed`` | to float32 | the same |
| O2, O3, O5 | half and float32 in a norm, if one of them is the input | to float32 | the same |
| O1 to O5 | half input and float32 weights of a batch or instance norm, where torch has no kernel | to float32 | half |
| O2, O3, O5 | half and float32 in the in-place form of these | to that of the first tensor | the same |
| O2, O3, O5 | half in a function that ``lacks_half_kernel`` | to float32 | float32 |

The rules are those of the op table, the others are facts about functions. A call that torch accepts is not changed, and
a mixture in an autocast region of the script neither: autocast casts by itself.
"""

import contextlib
import functools
import math
import numbers
import threading

import torch

from ...support.containers import floating_tensors, map_arguments
from ...support.torch_compat.features import available_devices, has_mixed_batch_norm
from ..op_table import expansion
from ..op_table.cast_rules import FFT
from ..op_table.function_properties import PROPERTIES, having
from . import autocast_flags, patch_targets, torch_compile
from .argument_casts import cast_to
from .emulated_half_arithmetic import round_results
from .torch_code import accept_any_floating_input, reread_recurrent_kernels
from .wrappers import is_alike, marked, may_hold_tensors

#: As in ``torch.finfo``, which aborts the process for bfloat16 in torch 1.3 to 1.5.
LARGEST = {torch.float16: 65504.0, torch.bfloat16: (2 - 2.0**-7) * 2.0**127}
_WIDE = (torch.float32, torch.float64)
_FLOATING = tuple(LARGEST) + _WIDE
_OWNERS = (torch.Tensor, torch, torch.nn.functional)
_ATTENTION = "scaled_dot_product_attention"  # it takes a float32 mask of half inputs


class _Thread(threading.local):
    multiplies_in_float32 = False


_thread = _Thread()


@contextlib.contextmanager
def products_in_float32():
    """Return a context manager in which this thread computes products of half and float32 in float32."""
    was, _thread.multiplies_in_float32 = _thread.multiplies_in_float32, True
    try:
        yield
    finally:
        _thread.multiplies_in_float32 = was


def accept(pairs, cast_pairs, patches):
    """Make torch accept such calls, until ``patches`` is undone.

    Args:
        pairs: the ``DtypePair`` of each level at which weights are half.
        cast_pairs: that of each level at which functions are cast.
    """
    devices, known = available_devices(), frozenset(pairs).union(cast_pairs)
    lacking = frozenset((pair, each) for pair in known for each in devices if not has_mixed_batch_norm(each, *pair))
    replacements = _writes() + (_norms(tuple(known), lacking) if pairs or lacking else [])
    if pairs:
        replacements += _mixtures(tuple(pairs))
        accept_any_floating_input(lambda args, kwargs: False, patches)
    patch_targets.replace_all(patches, [(owner, name, _marking(wrap)) for owner, name, wrap in replacements])
    if pairs:
        reread_recurrent_kernels(patches)


def _marking(wrap):
    return lambda function: marked(wrap(function))


# -- what is written into tensors ------------------------------------------------------------------------------------


def _writes():
    """Return [(owner, name, function that wraps it)] for what is written into tensors."""
    return [
        (owner, method, functools.partial(wrap, places=getattr(PROPERTIES[name], column)))
        for column, wrap in (("numbers", _in_range), ("source", _with_source))
        for name in sorted(having(column))
        for method in (name, name + "_")
        for owner in _OWNERS
        if callable(getattr(owner, method, None))
    ]


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
            args, kwargs = _replaced(args, kwargs, places, lambda source: _as_written(source, dtype, args[1]))
        return call(*args, **kwargs)

    return with_source


def _as_written(source, dtype, index):
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


# -- mixtures of half and float32, and functions without half kernels ------------------------------------------------


def _norms(pairs, lacking):
    """Return [(owner, name, function that wraps it)] for norms with half arguments.

    Args:
        pairs: those of the mixtures.
        lacking: (pair, device type): torch has no kernel for half input and float32 weights there.
    """
    found = []
    for owner in (torch, torch.nn.functional):
        for name in sorted(having("is_norm")):
            options = {"choose": functools.partial(_wide_norm, lacking=())}
            if name in ("batch_norm", "instance_norm"):
                written = functools.partial(_updated_statistics, name, 3 if owner is torch else 1)
                choose = functools.partial(_wide_norm, lacking=lacking)
                options = {"choose": choose, "written": written, "in_autocast": frozenset(pair for pair, _ in lacking)}
            if hasattr(owner, name):
                found.append((owner, name, functools.partial(_cast, pairs=pairs, **options)))
    return found


def _mixtures(pairs):
    """Return [(owner, name, function that wraps it)] for calls that have half arguments."""

    def casting(choose):
        return functools.partial(_cast, pairs=pairs, choose=choose)

    found = []
    refuse = having("refuses_mixed")
    products = {row.name for row in expansion.rows() if row.rule == expansion.HALF} - having("promotes")
    for owner, row in patch_targets.place(expansion.rows()):
        if row.lacks_half_kernel:
            wrap = functools.partial(_widened, pairs=pairs, is_transform=row.owner == FFT)
        elif row.name == _ATTENTION:
            wrap = functools.partial(_attention, pairs=pairs)
        elif row.rule == expansion.FOLLOW_SELF and expansion.out_of_place(row.name) in products | refuse:
            wrap = casting(_dtype_of_first)
        elif row.name in products:
            wrap = casting(_narrow)
        elif row.name in refuse:
            wrap = casting(_wide)
        else:
            continue
        found.append((owner, row.name, wrap))
    return found


def without_half_kernels(pair):
    """Return {a function of torch that lacks half kernels: the same, computed in the high dtype}."""
    rows = [(owner, row) for owner, row in patch_targets.place(expansion.rows()) if row.lacks_half_kernel]
    functions = {torch_compile.original(getattr(owner, row.name)): row.owner == FFT for owner, row in rows}
    return {function: _widened(function, (pair,), is_transform) for function, is_transform in functions.items()}


def _narrow(first, pair):
    is_wide = not torch_compile.is_tracing() and _thread.multiplies_in_float32
    return pair.high if is_wide else pair.low


def _wide(first, pair):
    return pair.high


def _dtype_of_first(first, pair):
    return first.dtype


def _wide_norm(first, pair, lacking):
    return pair.high if first.dtype is pair.high or (pair, first.device.type) in lacking else None


def _updated_statistics(name, place, args, kwargs):
    """Return the running statistics, of which the first is argument ``place``, if a norm with these arguments does so.

    The flag that it does is argument 5 of all of them.
    """
    flag, default = ("training", False) if name == "batch_norm" else ("use_input_stats", True)
    if not (args[5] if len(args) > 5 else kwargs.get(flag, default)):
        return []
    found = list(args[place : place + 2]) + [kwargs.get("running_mean"), kwargs.get("running_var")]
    return [each for each in found if each is not None]


def _cast(function, pairs, choose, written=lambda args, kwargs: (), in_autocast=()):
    """Cast a mixture to the dtype that ``choose(first tensor, pair)`` returns; None: leave it alone.

    ``written(args, kwargs)`` returns the tensors among the arguments that the function writes into. ``in_autocast``:
    pairs of which mixtures are cast in autocast regions too.
    """

    @functools.wraps(function)
    def accepting(*args, **kwargs):
        if is_alike(args) and not (kwargs and may_hold_tensors(kwargs.values())):
            return function(*args, **kwargs)
        first, pair = _mixture(args, kwargs, pairs, in_autocast)
        dtype = None if pair is None else choose(first, pair)
        if dtype is None:
            return function(*args, **kwargs)
        inputs, options = map_arguments(cast_to(dtype), args, kwargs)
        result = function(*inputs, **options)
        for tensor, copied in zip(written(args, kwargs), written(inputs, options)):
            if copied is not tensor:
                tensor.copy_(copied)
        return round_results(result, first.dtype)

    return accepting


def _attention(function, pairs):
    @functools.wraps(function)
    def accepting(query, key, value, *args, **kwargs):
        first, pair = _mixture((query, key, value), {}, pairs)
        if pair is None:
            return function(query, key, value, *args, **kwargs)
        query, key, value = map(cast_to(_narrow(first, pair)), (query, key, value))
        return round_results(function(query, key, value, *args, **kwargs), first.dtype)

    return accepting


def _widened(function, pairs, is_transform):
    """Compute low inputs in the high dtype, except for a transform of float16 on a GPU, which may have a kernel."""
    pairs = tuple(pair for pair in pairs if pair.low in LARGEST)

    @functools.wraps(function)
    def accepting(*args, **kwargs):
        tensors = [] if "out" in kwargs else floating_tensors(kwargs, floating_tensors(args, []))
        for tensor in tensors:
            for low, high in pairs:
                is_left = is_transform and low is torch.float16 and tensor.device.type != "cpu"
                if tensor.dtype is low and not is_left and not _is_autocast(tensor.device.type):
                    args, kwargs = map_arguments(cast_to(high), args, kwargs)
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return accepting


def _mixture(args, kwargs, pairs, in_autocast=()):
    """Return the first tensor and the pair of which both dtypes, and no others, are among the arguments."""
    tensors = [] if "out" in kwargs else floating_tensors(kwargs, floating_tensors(args, []))
    for pair in pairs:
        lows = len([tensor for tensor in tensors if tensor.dtype is pair.low])
        highs = len([tensor for tensor in tensors if tensor.dtype is pair.high])
        if lows and highs and lows + highs == len(tensors):
            if pair in in_autocast or not _is_autocast(tensors[0].device.type):
                return tensors[0], pair
    return None, None


def _is_autocast(device):
    if torch_compile.is_tracing():
        return torch_compile.is_autocast_enabled((device,))
    return autocast_flags.region_dtype(device) is not None
