"""Track the storages of all tensors that operations return, in forward and backward, with a dispatch mode."""

import functools

import torch

from ...support.containers import tensors_in
from ...support.patching import PatchStack
from ..calls import OperationCalls
from .storages import StorageTable, allocated, storages_in


class AllocationTracker(OperationCalls):
    """A context manager that records the storages made inside it, and calls back when their bytes exceed ``limit``.

    Memory that a kernel allocates and frees before it returns is not recorded; only the allocator knows about it.
    Storages that are resized are recorded: ``fully_shard`` allocates and frees gathered weights in this way.

    Args:
        on_growth: called without arguments when the bytes that may be in use exceed ``limit``; it sets a new limit.
        is_weight: a function: key of a storage -> whether it is that of a weight.
        device_types: those of the params. Storages created on other devices are recorded in ``elsewhere``.

    Attributes:
        made: the ``StorageTable`` of storages created in the context.
        casts: those of them that are weights cast to another dtype, or copies of these.
        resized: the ``StorageTable`` of storages from outside that were resized in the context.
        elsewhere: the ``StorageTable`` of storages created on other devices, which are not part of ``made``.
    """

    def __init__(self, on_growth, is_weight, device_types=()):
        super().__init__()
        self.limit = 0
        self._on_growth = on_growth
        self._is_weight = is_weight
        self.made = StorageTable()
        self.casts = StorageTable()
        self.resized = StorageTable()
        self.elsewhere = StorageTable()
        self._device_types = frozenset(device_types)
        self._made_outside = StorageTable()
        self._cast = torch.ops.aten._to_copy.default

    @property
    def max_bytes(self):
        """An upper bound on the bytes in use."""
        return self.made.max_bytes + self.resized.max_bytes

    def __enter__(self):
        self._patches = PatchStack()
        self._patches.set(torch.UntypedStorage, "resize_", self._watched(torch.UntypedStorage.resize_))
        return super().__enter__()

    def __exit__(self, *exc_info):
        super().__exit__(*exc_info)
        self._patches.undo()

    def _watched(self, resize):
        @functools.wraps(resize)
        def resize_and_record(storage, *args):
            result = resize(storage, *args)
            key, size = storage._cdata, allocated(storage.nbytes())
            (self.made if key in self.made else self.resized).add(key, size, storage)
            self._check_growth()
            return result

        return resize_and_record

    def _check_growth(self):
        if self.max_bytes > self.limit:
            self._on_growth()

    def called(self, function, args, kwargs):
        """Run an operation and record the storages of its results."""
        result = function(*args, **kwargs)
        self._add_results(function, result, args, kwargs)
        self._check_growth()
        return result

    def _add_results(self, function, result, args, kwargs):
        for tensor in tensors_in(result):
            if self._device_types and tensor.device.type not in self._device_types:
                for key, size, storage in storages_in(tensor):
                    self.elsewhere.add(key, size, storage)
            else:
                self._add_tensor(function, tensor, args, kwargs)

    def _add_tensor(self, function, tensor, args, kwargs):
        for key, size, storage in storages_in(tensor):
            if key in self.made or key in self._made_outside or key in self.resized:
                continue
            sources = [other for other, _, _ in storages_in((args, kwargs))]
            if key in sources:  # a view, or a change in place, of a tensor from outside
                self._made_outside.add(key, size, storage)
                continue
            self.made.add(key, size, storage)
            if function is self._cast and self._is_weight_or_cast(sources[0]):
                self.casts.add(key, size, storage)

    def _is_weight_or_cast(self, key):
        return key in self.casts or key in self.resized or self._is_weight(key)

    def sizes(self):
        """Return ``{key: bytes}`` of the storages that were created in the context and still exist."""
        self._made_outside.sizes()
        return self.made.sizes()

    def reset(self):
        """Count everything created so far as created outside."""
        for table in (self.made, self.casts, self.resized, self.elsewhere, self._made_outside):
            table.clear()
