"""Batch and instance norm of a low-precision input with high-precision weights, where torch has no kernel for the mix.

The result has the input's dtype, as from the mixed kernels. Only old torch on the CPU needs this (up to 2.1 for
float16), and the dtypes ``opt_levels.STAND_IN``; elsewhere nothing is patched.
"""

import functools

import torch

from ...support.torch_compat import features

NAMES = ("batch_norm", "instance_norm")


def compute_wide(caster, devices, patches):
    """Patch the norms if one of the device types lacks the mixed kernel.

    Args:
        caster: the backend's ``ArgumentCaster``.
        devices: device types.
        patches: the ``PatchStack`` that undoes it.
    """
    if all(features.has_mixed_batch_norm(device, caster.low, caster.high) for device in devices):
        return
    for name in NAMES:
        patches.set(torch, name, _wide(getattr(torch, name), caster))


def _wide(norm, caster):
    @functools.wraps(norm)
    def in_high(input, *args, **kwargs):
        if not is_mixed(caster.low, input, args, kwargs) or caster.is_exempt((input,), kwargs):
            return norm(input, *args, **kwargs)
        return norm(input.to(caster.high), *args, **kwargs).to(caster.low)

    return in_high


def is_mixed(low, input, args, kwargs):
    """Return whether a norm's input has the dtype ``low`` and a tensor among its other arguments has not."""
    others = [value for value in args + tuple(kwargs.values()) if isinstance(value, torch.Tensor)]
    return input.dtype is low and not all(value.dtype is low for value in others)
