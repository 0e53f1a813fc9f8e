"""Load a script's real data, in this process: only the computation of the step is fake."""

import functools

import torch
import torch.utils.data
from torch.utils.data import dataloader

from ...support.patching import PatchStack
from ...support.torch_compat import thread_context


def load_real_data(patches):
    """Disable fake tensors in datasets, samplers and ``DataLoader``, which read values.

    Dataset classes that are defined from now on are changed permanently, so use this only in a separate process.

    Args:
        patches: the ``PatchStack`` that undoes the rest.
    """
    loader, iterator = torch.utils.data.DataLoader, dataloader._BaseDataLoaderIter
    patches.set(loader, "__iter__", _outside(_without_workers(loader.__iter__)))
    patches.set(iterator, "__next__", _outside(iterator.__next__))
    patches.set(torch.utils.data.Dataset, "__init_subclass__", classmethod(_made_outside))


def _outside(function):
    """Return ``function``, run with real tensors."""

    @functools.wraps(function)
    def outside(*args, **kwargs):
        with thread_context.without_dispatch_modes():
            return function(*args, **kwargs)

    return outside


def _without_workers(iterate):
    """Return a ``DataLoader.__iter__`` that starts no processes, since fake tensors cannot be sent to them."""

    @functools.wraps(iterate)
    def iterate_here(self):
        with PatchStack() as patches:
            patches.set(self, "num_workers", 0)
            return iterate(self)

    return iterate_here


def _made_outside(kind, **options):
    super(torch.utils.data.Dataset, kind).__init_subclass__(**options)
    if "__init__" in vars(kind):
        kind.__init__ = _outside(kind.__init__)
