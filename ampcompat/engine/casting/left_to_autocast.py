"""The wrapper of half functions that torch's autocast casts by itself.

It checks that autocast does, in this thread and for these arguments, and whether it may use its copies of weights.
"""

import functools

import torch

from .torch_compile import is_tracing
from .wrappers import HOLD_NO_TENSORS, PLAIN_TENSORS, SEQUENCES, marked

_Parameter, _float64, _strided = torch.nn.Parameter, torch.float64, torch.strided


def half(wrapper, function, row, caster):
    """Return a wrapper of ``function`` that calls the row's own ``wrapper`` for what autocast does not cast."""
    switch, local, key = caster.switch, caster.switch.local, row.name_for_autocast
    has_right_copies, use_cache = caster.autocast_cache.has_right_copies, torch.set_autocast_cache_enabled

    @functools.wraps(function)
    def by_autocast(*args, **kwargs):
        devices, weights = switch.devices, []
        if is_tracing() or local.entered is not devices or key not in devices.rows:
            return wrapper(*args, **kwargs)
        for arg in args:
            kind = type(arg)
            if kind in PLAIN_TENSORS:
                if arg.dtype is _float64 or arg.layout is not _strided:
                    return wrapper(*args, **kwargs)
                if kind is _Parameter:
                    weights.append(arg)
            elif kind not in HOLD_NO_TENSORS and not (kind in SEQUENCES and HOLD_NO_TENSORS.issuperset(map(type, arg))):
                return wrapper(*args, **kwargs)
        if kwargs and not HOLD_NO_TENSORS.issuperset(map(type, kwargs.values())):
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
