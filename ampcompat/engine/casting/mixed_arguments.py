"""Calls that torch refuses where weights are half (O2, O3, O5) and accepts in float32. They are computed nevertheless:

| refused | the arguments are cast to | dtype of the result |
|---|---|---|
| half and float32 in a product: a function with the rule "half" | half | that of the first tensor |
| half and float32 in a function that ``refuses_mixed``, float32 in a norm with half weights | float32 | the same |
| half and float32 in the in-place form of these | that of the first tensor | the same |
| half in a function that ``lacks_half_kernel`` | float32 | float32 |

The rules are those of the op table, the others are facts about functions. A call that torch accepts is not changed, and
neither is one in an autocast region of the script, which casts by itself.
"""

import contextlib
import functools
import threading

import torch

from ...support.nested import floating_tensors, map_arguments
from ..op_table import expansion
from ..op_table.function_dtypes import FFT
from ..op_table.function_facts import having
from . import autocast_flags, other_patches, patch_targets, recurrent_layers, torch_compile
from .argument_casts import cast_to
from .emulated_half_arithmetic import round_results
from .wrappers import is_alike, marked, may_hold_tensors
from .written_values import LARGEST

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


def accept(pairs, patches):
    """Make torch accept such calls, until ``patches`` is undone.

    Args:
        pairs: the ``DtypePair`` of each level at which weights are half.
    """
    originals = []
    for owner, name, wrap, options in _functions():
        make = functools.partial(wrap, pairs=tuple(pairs), **options)
        originals.append(patch_targets.replace(patches, owner, name, lambda call, make=make: marked(make(call))))
    other_patches.script_originals(originals, patches)
    recurrent_layers.accept_any_floating_input(lambda args, kwargs: False, patches)
    recurrent_layers.reread_recurrent_kernels(patches)


def _functions():
    """Return [(owner, name, function that wraps it, keyword arguments of that)]."""
    norms = [(owner, name) for owner in (torch, torch.nn.functional) for name in sorted(having("is_norm"))]
    found = [(owner, name, _cast, dict(choose=_wide_as_first)) for owner, name in norms if hasattr(owner, name)]
    refuse = having("refuses_mixed")
    products = {row.name for row in expansion.rows() if row.rule == expansion.HALF} - having("promotes")
    for owner, row in patch_targets.place(expansion.rows()):
        if row.lacks_half_kernel:
            found.append((owner, row.name, _widened, dict(is_transform=row.owner == FFT)))
        elif row.name == _ATTENTION:
            found.append((owner, row.name, _attention, {}))
        elif row.rule == expansion.FOLLOW_SELF and expansion.out_of_place(row.name) in products | refuse:
            found.append((owner, row.name, _cast, dict(choose=_dtype_of_first)))
        elif row.name in products | refuse:
            found.append((owner, row.name, _cast, dict(choose=_narrow if row.name in products else _wide)))
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
    return first


def _wide_as_first(first, pair):
    return first if first is pair.high else None


def _cast(function, pairs, choose):
    """Cast a mixture to the dtype that ``choose(dtype of the first tensor, pair)`` returns; None: leave it alone."""

    @functools.wraps(function)
    def accepting(*args, **kwargs):
        if is_alike(args) and not (kwargs and may_hold_tensors(kwargs.values())):
            return function(*args, **kwargs)
        first, pair = _mixture(args, kwargs, pairs)
        dtype = None if pair is None else choose(first, pair)
        if dtype is None:
            return function(*args, **kwargs)
        args, kwargs = map_arguments(cast_to(dtype), args, kwargs)
        return round_results(function(*args, **kwargs), first)

    return accepting


def _attention(function, pairs):
    @functools.wraps(function)
    def accepting(query, key, value, *args, **kwargs):
        first, pair = _mixture((query, key, value), {}, pairs)
        if pair is None:
            return function(query, key, value, *args, **kwargs)
        query, key, value = map(cast_to(_narrow(first, pair)), (query, key, value))
        return round_results(function(query, key, value, *args, **kwargs), first)

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


def _mixture(args, kwargs, pairs):
    """Return the first tensor's dtype and the pair of which both dtypes, and no others, are among the arguments."""
    tensors = [] if "out" in kwargs else floating_tensors(kwargs, floating_tensors(args, []))
    for pair in pairs:
        lows = len([tensor for tensor in tensors if tensor.dtype is pair.low])
        highs = len([tensor for tensor in tensors if tensor.dtype is pair.high])
        if lows and highs and lows + highs == len(tensors) and not _is_autocast(tensors[0].device.type):
            return tensors[0].dtype, pair
    return None, None


def _is_autocast(device):
    if torch_compile.is_tracing():
        return torch_compile.is_autocast_enabled((device,))
    return autocast_flags.region_dtype(device) is not None
