"""Track the storages of all tensors that operations return, in forward and backward, by a dispatch mode."""

import os

import torch

from ..torch_compat import features
from .storages import StorageTable, storages_in

if features.has_dispatch_modes():
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = object


class AllocationTracker(_Mode):
    """A context manager that records the storages made inside it, and calls back when their bytes exceed ``limit``.

    What a kernel allocates and frees before it returns is not seen; only the allocator knows of it.

    Args:
        on_growth: called without arguments when the bytes that may be alive exceed ``limit``; it sets a new limit.
        is_weight: a function: key of a storage -> whether it is that of a weight.

    Attributes:
        made: the ``StorageTable`` of what was made in the context.
        weight_casts: those of them that are casts of weights, or casts of such casts.
    """

    def __init__(self, on_growth, is_weight):
        super().__init__()
        self.limit = 0
        self._on_growth = on_growth
        self._is_weight = is_weight
        self.made = StorageTable()
        self.weight_casts = StorageTable()
        self._made_outside = StorageTable()
        self._process = os.getpid()
        self._cast = torch.ops.aten._to_copy.default

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation and record the storages of its results."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        # A data loader's worker that was forked inside the context inherits the mode; its tensors are not counted.
        if os.getpid() == self._process:
            self._add_results(function, result, args, kwargs)
            if self.made.max_bytes > self.limit:
                self._on_growth()
        return result

    def _add_results(self, function, result, args, kwargs):
        for key, size, storage in storages_in(result):
            if key in self.made or key in self._made_outside:
                continue
            sources = [other for other, _, _ in storages_in((args, kwargs))]
            if key in sources:  # a view, or a change in place, of a tensor from outside
                self._made_outside.add(key, size, storage)
                continue
            self.made.add(key, size, storage)
            if function is self._cast and (sources[0] in self.weight_casts or self._is_weight(sources[0])):
                self.weight_casts.add(key, size, storage)

    def sizes(self):
        """Return ``{key: bytes}`` of the storages that were made in the context and are still alive."""
        self._made_outside.sizes()
        return self.made.sizes()

    def reset(self):
        """Count what has been made so far as made outside."""
        for table in (self.made, self.weight_casts, self._made_outside):
            table.clear()
