"""Data loading runs without casts.

Preparing data is not part of the model: coordinates of a few hundred thousand would become inf in float16.
"""

import functools

import torch.utils.data
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory, worker

from .autograd import without_casts

#: The iterators of ``DataLoader``, which run a ``Dataset`` in the main process; which of them defines ``__next__``
#: depends on the version of torch.
_ITERATORS = ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


def pause_loading(backend, patches):
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
