"""What a backend patches of torch beside the functions of the op table. Each function takes the ``PatchStack``.

Preparing data is not part of the model, so data loading runs without casts: coordinates of a few hundred thousand would
become inf in float16.
"""

import functools

import torch
import torch.utils.data
from torch.nn.modules import rnn
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory, worker

from ...support.patching import PatchStack
from ...support.torch_compat import features
from . import compile
from .autograd import without_casts

NORMS = ("batch_norm", "instance_norm")

#: The iterators of ``DataLoader``, which run a ``Dataset`` in the main process; which of them defines ``__next__``
#: depends on the version of torch.
_ITERATORS = ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


def patch_all(backend, caster, originals, patches):
    """Patch everything here for one backend.

    Args:
        originals: [(owner, name, entry)]: what the wrappers, which are in place, have replaced.
    """
    script_originals(originals, patches)
    _accept_any_floating_input(caster, patches)
    _compute_norms_wide(caster, patches)
    _reread_recurrent_kernels(patches)
    _pause_loading(backend, patches)
    _turn_off_fast_paths(patches)


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


def _accept_any_floating_input(caster, patches):
    """Make recurrent layers accept inputs of any floating dtype while casts are active.

    A layer compares its input's dtype with its weights' before any function of the op table runs, and would refuse a
    half input, which is normal when other layers are cast.
    """
    original = rnn.RNNBase.check_input

    @functools.wraps(original)
    def check_input(self, input, *args, **kwargs):
        if not compile.is_compiling() and not caster.is_exempt((input,), kwargs):
            input = _with_dtype_of(input, self)
        return original(self, input, *args, **kwargs)

    patches.set(rnn.RNNBase, "check_input", check_input)


def _with_dtype_of(input, module):
    """Return something with the input's shape and the weights' dtype: all that the check reads."""
    weight = next(module.parameters(), None)
    if weight is None or not input.is_floating_point() or input.dtype is weight.dtype:
        return input
    return torch.empty((), dtype=weight.dtype, device=input.device).expand(input.shape)


def _reread_recurrent_kernels(patches):
    """Make ``nn.RNN`` use the wrapped kernels where it reads them from a dict made at import (torch < 1.8 or so)."""
    kernels = getattr(rnn, "_rnn_impls", None)
    if isinstance(kernels, dict):
        current = {mode: getattr(rnn._VF, mode.lower(), kernel) for mode, kernel in kernels.items()}
        patches.set(rnn, "_rnn_impls", current)


def _compute_norms_wide(caster, patches):
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


def _pause_loading(backend, patches):
    """Run what ``DataLoader`` calls without casts: a ``Dataset``, ``collate_fn``, samplers, pinning and the workers."""
    loader = torch.utils.data.DataLoader
    # Workers are started here. Forked ones inherit the pause of the thread that forks them.
    places = [(loader, "__iter__")]
    places += [(getattr(dataloader, name, None), "__next__") for name in _ITERATORS]
    places.append((pin_memory, "_pin_memory_loop"))
    for owner, name in places:
        if owner is not None and name in vars(owner):
            patches.set(owner, name, without_casts(getattr(owner, name), backend))
    patches.set(worker, "_worker_loop", _in_worker(worker._worker_loop, backend))


def _in_worker(original, backend):
    @functools.wraps(original)
    def worker_loop(*args, **kwargs):
        backend.stop()  # for threads that the Dataset starts too
        return original(*args, **kwargs)

    return worker_loop


def _turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and similar layers from calling fused kernels without rows (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        mha.set_fastpath_enabled(False)
        patches.defer(mha.set_fastpath_enabled, True)
