"""Track the storages of all tensors that operations return, with a dispatch mode, and find those in containers."""

import functools

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...support.containers import tensors_in
from ...support.patching import PatchStack
from ..calls import OperationCalls


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
            # An empty one that was not counted is left out: freeing a weak reference to it ends torch 2.7 by SIGSEGV.
            if size or key in self.made or key in self.resized:
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


#: Allocations are rounded up to a multiple of this number of bytes: 1 on a CPU; set by predictions for CUDA.
UNIT = 1


def storages_in(value):
    """Yield ``(key, bytes, storage)`` of every tensor nested in a value; a storage may be yielded more than once."""
    for tensor in tensors_in(value):
        yield from _storages_of(tensor)


def sizes_in(value):
    """Return ``{key: bytes}`` of the storages of all tensors nested in a value, each counted once."""
    return {key: size for key, size, _ in storages_in(value)}


def allocated(size):
    """Return the bytes that an allocation of ``size`` bytes takes."""
    return -(-size // UNIT) * UNIT


def _storages_of(tensor):
    parts = _parts_of(tensor)
    if parts is not None:
        for part in parts:
            yield from storages_in(part)
        return
    try:
        storage = (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)()
    except (RuntimeError, NotImplementedError):  # of a functorch transform, or of a backend without storages
        return
    size = storage.nbytes() if hasattr(storage, "nbytes") else storage.size() * storage.element_size()
    if size:
        yield storage._cdata, allocated(size), storage


def _parts_of(tensor):
    """Return the plain tensors inside a sparse tensor or a wrapper subclass such as DTensor; None for a plain one."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout is not torch.strided:  # compressed sparse layouts; the other ones (mkldnn) have no storage
        names = ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values")
        return [part for part in (_part(tensor, name) for name in names) if part is not None]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or flatten is None:
        return None
    return [getattr(tensor, name) for name in flatten()[0]]


def _part(tensor, name):
    try:
        return getattr(tensor, name)()
    except (AttributeError, RuntimeError):  # each compressed layout has some of these methods
        return None


class StorageTable:
    """Weakly referenced storages by key, with an upper bound on the bytes in use.

    The key of a storage is the address of its ``StorageImpl``. Views and tied weights share it. Unlike the address of
    the data, it cannot be reused while there is a weak reference. Nothing here keeps a tensor's memory allocated.
    """

    def __init__(self):
        self._entries = {}  # key -> (weak reference, bytes)
        self.max_bytes = 0

    def add(self, key, size, storage):
        """Add a storage, or change the size of one that is in the table."""
        self.max_bytes += size - (self._entries[key][1] if key in self._entries else 0)
        self._entries[key] = StorageWeakRef(storage), size

    def sizes(self):
        """Return ``{key: bytes}`` of the storages that still exist, and drop the others."""
        self._entries = {key: entry for key, entry in list(self._entries.items()) if not entry[0].expired()}
        sizes = {key: size for key, (_, size) in self._entries.items()}
        self.max_bytes = sum(sizes.values())
        return sizes

    def weak_references(self, keys):
        """Return ``{key: weak reference}``; a key is not reused while its reference exists."""
        return {key: self._entries[key][0] for key in keys}

    def clear(self):
        """Drop all entries."""
        self._entries = {}
        self.max_bytes = 0

    def __contains__(self, key):
        return key in self._entries
