"""Code of torch that needs something else than casts of arguments.

Recurrent layers compare dtypes before they call a function. What calls functions and is no part of a model runs without
casts: data loading, where coordinates of a few hundred thousand would become inf in float16, and the hooks of
``save_on_cpu``: at O1 and O4, as in Apex, ``Tensor.cpu`` returns float32.
"""

import functools

import torch
import torch.utils.data
from torch.nn.modules import rnn
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory, worker

from . import torch_compile

#: The iterators of ``DataLoader``, which run a ``Dataset`` in the main process; which of them defines ``__next__``
#: depends on the version of torch.
_ITERATORS = ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


def _without_casts(original, backend):
    """Return ``original`` running with the backend's casts off in the calling thread."""

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        with backend.paused():
            return original(*args, **kwargs)

    return wrapper


def pause_loading(backend, patches):
    """Run what ``DataLoader`` calls without casts: a ``Dataset``, ``collate_fn``, samplers, pinning and the workers."""
    loader = torch.utils.data.DataLoader
    # Workers are started here. Forked ones inherit the pause of the thread that forks them.
    places = [(loader, "__iter__")]
    places += [(getattr(dataloader, name, None), "__next__") for name in _ITERATORS]
    places.append((pin_memory, "_pin_memory_loop"))
    for owner, name in places:
        if owner is not None and name in vars(owner):
            patches.set(owner, name, _without_casts(getattr(owner, name), backend))

    def in_worker(original, *args, **kwargs):
        backend.stop()  # for threads that the Dataset starts too
        return original(*args, **kwargs)

    patches.wrap(worker, "_worker_loop", in_worker)


def pause_offloading(backend, patches):
    """Run the hooks of ``save_on_cpu`` without casts."""
    kind = getattr(getattr(torch.autograd, "graph", None), "save_on_cpu", None)
    if kind is None:  # torch before 1.10
        return

    def init_with_paused_hooks(init, self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.pack_hook = _without_casts(self.pack_hook, backend)
        self.unpack_hook = _without_casts(self.unpack_hook, backend)

    patches.wrap(kind, "__init__", init_with_paused_hooks)


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


def turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and similar layers from calling fused kernels without rows (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        patches.defer(mha.set_fastpath_enabled, True)
        mha.set_fastpath_enabled(False)
