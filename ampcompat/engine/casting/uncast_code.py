"""Code of torch that calls functions and is no part of a model runs without casts.

It is data loading, where coordinates of a few hundred thousand would become inf in float16, and the hooks of
``save_on_cpu``: at O1 and O4, as in Apex, ``Tensor.cpu`` returns float32.
"""

import functools

import torch
import torch.utils.data
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory, worker

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
    patches.set(worker, "_worker_loop", _in_worker(worker._worker_loop, backend))


def _in_worker(original, backend):
    @functools.wraps(original)
    def worker_loop(*args, **kwargs):
        backend.stop()  # for threads that the Dataset starts too
        return original(*args, **kwargs)

    return worker_loop


def pause_offloading(backend, patches):
    """Run the hooks of ``save_on_cpu`` without casts."""
    kind = getattr(getattr(torch.autograd, "graph", None), "save_on_cpu", None)
    if kind is None:  # torch before 1.10
        return
    init = kind.__init__

    @functools.wraps(init)
    def init_with_paused_hooks(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.pack_hook = _without_casts(self.pack_hook, backend)
        self.unpack_hook = _without_casts(self.unpack_hook, backend)

    patches.set(kind, "__init__", init_with_paused_hooks)
