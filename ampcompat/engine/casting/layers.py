"""What layers of torch need besides casts of the arguments of their functions."""

import functools

import torch
from torch.nn.modules import rnn

from ...support.torch_compat import features
from . import torch_compile

#: The norms whose input may be half with float32 params and statistics, in newer torch.
MIXED_NORMS = ("batch_norm", "instance_norm")


def accept_any_floating_input(is_exempt, patches):
    """Make recurrent layers accept inputs of any floating dtype unless ``is_exempt(args, kwargs)``.

    A layer compares its input's dtype with its weights' before any function of the op table runs, and would refuse a
    half input, which is normal when other layers are cast.
    """
    original = rnn.RNNBase.check_input

    @functools.wraps(original)
    def check_input(self, input, *args, **kwargs):
        if not torch_compile.is_compiling() and not is_exempt((input,), kwargs):
            input = _with_dtype_of(input, self)
        return original(self, input, *args, **kwargs)

    patches.set(rnn.RNNBase, "check_input", check_input)


def _with_dtype_of(input, module):
    """Return something with the input's shape and the weights' dtype: all that the check reads."""
    weight = next(module.parameters(), None)
    if weight is None or not input.is_floating_point() or input.dtype is weight.dtype:
        return input
    return torch.empty((), dtype=weight.dtype, device=input.device).expand(input.shape)


def reread_recurrent_kernels(patches):
    """Make ``nn.RNN`` use the wrapped kernels where it reads them from a dict made at import (torch < 1.8 or so)."""
    kernels = getattr(rnn, "_rnn_impls", None)
    if isinstance(kernels, dict):
        current = {mode: getattr(rnn._VF, mode.lower(), kernel) for mode, kernel in kernels.items()}
        patches.set(rnn, "_rnn_impls", current)


def compute_norms_wide(caster, patches):
    """Compute batch and instance norms of low input with high weights where torch has no kernel for the mix.

    The result has the input's dtype, as from the mixed kernels. Only old torch on the CPU needs this (up to 2.1 for
    float16), and the dtypes ``opt_levels.STAND_IN``.
    """
    devices = features.available_devices()
    if not all(features.has_mixed_batch_norm(device, caster.low, caster.high) for device in devices):
        for name in MIXED_NORMS:
            patches.set(torch, name, _wide(getattr(torch, name), caster))


def _wide(norm, caster):
    @functools.wraps(norm)
    def in_high(input, *args, **kwargs):
        others = [value for value in args + tuple(kwargs.values()) if isinstance(value, torch.Tensor)]
        is_mixed = input.dtype is caster.low and not all(value.dtype is caster.low for value in others)
        if not is_mixed or caster.is_exempt((input,), kwargs):
            return norm(input, *args, **kwargs)
        return norm(input.to(caster.high), *args, **kwargs).to(caster.low)

    return in_high


def turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and similar layers from calling fused kernels without rows (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        patches.defer(mha.set_fastpath_enabled, True)
        mha.set_fastpath_enabled(False)
