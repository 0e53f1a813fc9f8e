"""Find the storages of tensors nested in containers, and track which of them still exist.

The key of a storage is the address of its ``StorageImpl``. Views and tied weights share it. Unlike the address of the
data, it cannot be reused while there is a weak reference. Nothing here keeps the memory of a tensor allocated.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...support.containers import tensors_in

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
    """Weakly referenced storages by key, with an upper bound on the bytes in use."""

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
