"""What a backend patches of torch beside the functions of the op table."""

import functools

import torch

from ...support.patching import PatchStack
from ...support.torch_compat import features
from .thread_state import WithFlags

NORMS = ("batch_norm", "instance_norm")


def script_originals(originals, patches):
    """Make ``torch.jit.script``, which looks functions up by identity, compile torch's own and not the wrappers.

    They are back for the whole process while it runs: milliseconds, as a rule when modules are imported or built.
    """
    script = torch.jit.script

    @functools.wraps(script)
    def script_with_originals(obj, optimize=None, _frames_up=0, *args, **kwargs):
        with PatchStack() as restored:
            for owner, name, entry in originals:
                restored.set(owner, name, entry)
            # The globals of a scripted class are those of the caller, one frame further up from here.
            return script(obj, optimize, _frames_up + 1, *args, **kwargs)

    patches.set(torch.jit, "script", script_with_originals)


def cast_around_regions(switch, autocast_cache, patches):
    """Set autocast's flags around a region that a script opens in a thread which casts without them.

    So ``torch.autocast(enabled=False)`` turns casts off there, as in the main thread. A region may have another dtype,
    which autocast's cache ignores: it is cleared.
    """
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    @functools.wraps(enter)
    def __enter__(region):
        autocast_cache.clear()
        flags = WithFlags(switch) if switch.casts_without_flags() else None
        if flags is not None:
            flags.__enter__()
        vars(region).setdefault("_amp_flags", []).append(flags)
        return enter(region)

    @functools.wraps(leave)
    def __exit__(region, *exc_info):
        result = leave(region, *exc_info)
        entered = vars(region).get("_amp_flags")  # empty or absent: the region was entered before
        flags = entered.pop() if entered else None
        if flags is not None:
            flags.__exit__(*exc_info)
        return result

    patches.set(torch.autocast, "__enter__", __enter__)
    patches.set(torch.autocast, "__exit__", __exit__)


def compute_norms_wide(caster, patches):
    """Compute batch and instance norms of low input with high weights where torch has no kernel for the mix.

    The result has the input's dtype, as from the mixed kernels. Only old torch on the CPU needs this (up to 2.1 for
    float16), and the dtypes ``opt_levels.STAND_IN``.
    """
    devices = features.available_devices()
    if not all(features.has_mixed_batch_norm(device, caster.low, caster.high) for device in devices):
        for name in NORMS:
            patches.set(torch, name, _wide(getattr(torch, name), caster))


def _wide(norm, caster):
    @functools.wraps(norm)
    def in_high(input, *args, **kwargs):
        if not is_mixed_norm(caster.low, input, args, kwargs) or caster.is_exempt((input,), kwargs):
            return norm(input, *args, **kwargs)
        return norm(input.to(caster.high), *args, **kwargs).to(caster.low)

    return in_high


def is_mixed_norm(low, input, args, kwargs):
    """Return whether a norm's input has the dtype ``low`` and a tensor among its other arguments has not."""
    others = [value for value in args + tuple(kwargs.values()) if isinstance(value, torch.Tensor)]
    return input.dtype is low and not all(value.dtype is low for value in others)


def turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and similar layers from calling fused kernels without rows (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        patches.defer(mha.set_fastpath_enabled, True)
        mha.set_fastpath_enabled(False)
