"""Batch and instance norm of a low-precision input with high-precision weights, where torch has no kernel for the mix.

Owns: the patches of ``torch.batch_norm`` and ``torch.instance_norm``.
Must not touch: the norms' dtypes as the user sees them: what comes out has the input's dtype, as from the mixed kernels.
The surprise: it is there for old torch on the CPU and for the stand-in dtypes; elsewhere nothing is patched. It can go with the last
torch whose CPU lacks the mixed kernels (2.0 for float16).
"""

import functools

import torch

from ..tables import torch_facts


def compute_wide(casts, devices, patches):
    """Patch the norms if one of the device types lacks the mixed kernel; ``casts`` says when and which dtypes."""
    if all(torch_facts.has_mixed_batch_norm(device, casts.low, casts.high) for device in devices):
        return
    for name in ("batch_norm", "instance_norm"):
        patches.set(torch, name, _wide(getattr(torch, name), casts))


def _wide(norm, casts):
    @functools.wraps(norm)
    def in_high(input, *args, **kwargs):
        others = [value for value in args + tuple(kwargs.values()) if isinstance(value, torch.Tensor)]
        if casts.inactive() or input.dtype is not casts.low or all(value.dtype is casts.low for value in others):
            return norm(input, *args, **kwargs)
        return norm(input.to(casts.high), *args, **kwargs).to(casts.low)

    return in_high
