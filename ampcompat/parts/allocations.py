"""See every tensor that is made, by whatever operation, forward and backward.

Owns: ``Allocations``, a mode in which torch shows it the results of all operations.
Must not touch: arguments and results.
The surprise: what a kernel takes for itself and gives back before it returns is not seen; only an allocator knows.
"""

import os

import torch

from ..tables import torch_facts
from .storages import StorageTable, storages_in

if torch_facts.has_dispatch_modes():
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = object


class Allocations(_Mode):
    """A context manager: the storages made inside it, and a call when their bytes pass a limit.

    Args:
        on_growth: called, without arguments, when the bytes that may be held have passed ``limit``; it sets a new one.
        is_weight: whether a key is that of a weight's storage.
    """

    def __init__(self, on_growth, is_weight):
        super().__init__()
        self.limit = 0
        self._on_growth = on_growth
        self._is_weight = is_weight
        self._made = StorageTable()
        self._weight_casts = StorageTable()  # those among them
        self._from_outside = StorageTable()
        self._process = os.getpid()
        self._cast = torch.ops.aten._to_copy.default

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation and look at its results."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        # A data loader's worker that was forked in here keeps the mode, and is none of our business.
        if os.getpid() == self._process:
            self._note(function, result, args, kwargs)
            if self._made.bound > self.limit:
                self._on_growth()
        return result

    def _note(self, function, result, args, kwargs):
        for key, size, storage in storages_in(result):
            if key in self._made or key in self._from_outside:
                continue
            sources = [other for other, _, _ in storages_in((args, kwargs))]
            if key in sources:  # a view, or a change in place, of what was there before
                self._from_outside.add(key, size, storage)
                continue
            self._made.add(key, size, storage)
            if function is self._cast and (sources[0] in self._weight_casts or self._is_weight(sources[0])):
                self._weight_casts.add(key, size, storage)

    def living(self):
        """Return ``{key: bytes}`` of the storages that were made in here and still live."""
        self._from_outside.living()
        return self._made.living()

    def weight_casts(self):
        """Return ``{key: bytes}`` of those of them that are casts of weights, or casts of such casts."""
        return self._weight_casts.living()

    def references(self, keys):
        """Return ``{key: something}`` that lets no other storage have the keys as long as it is held."""
        return self._made.references(keys)

    def forget(self):
        """Take what has been made so far for something from outside."""
        for table in (self._made, self._weight_casts, self._from_outside):
            table.clear()

    @property
    def bound(self):
        """An upper bound of the bytes that were made in here and still live."""
        return self._made.bound
