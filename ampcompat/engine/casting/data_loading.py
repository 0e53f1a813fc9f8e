"""Runs data loading without casts: a ``Dataset``, ``collate_fn``, samplers and the workers of a ``DataLoader``.

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
    """Run what ``DataLoader`` calls with the backend's casts off.

    Args:
        backend: a ``CastBackend``.
        patches: the ``PatchStack`` that undoes it.
    """
    loader = torch.utils.data.DataLoader
    # Workers are started here. Forked ones inherit the pause of the thread that forks them.
    patches.set(loader, "__iter__", without_casts(loader.__iter__, backend))
    for name in _ITERATORS:
        iterator = getattr(dataloader, name, None)
        if "__next__" in vars(iterator or object):
            patches.set(iterator, "__next__", without_casts(iterator.__next__, backend))
    if hasattr(pin_memory, "_pin_memory_loop"):
        patches.set(pin_memory, "_pin_memory_loop", without_casts(pin_memory._pin_memory_loop, backend))
    patches.set(worker, "_worker_loop", _in_worker(worker._worker_loop, backend))


def _in_worker(original, backend):
    @functools.wraps(original)
    def worker_loop(*args, **kwargs):
        backend.stop()  # for threads that the Dataset starts too
        return original(*args, **kwargs)

    return worker_loop
