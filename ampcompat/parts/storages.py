"""Which pieces of memory tensors stand on.

Owns: ``storages_in``, the storages of tensors nested in anything; ``StorageTable``, storages and whether they live.
Must not touch: the tensors; nothing here keeps their memory alive.
The surprise: a storage is known by the address of torch's own record of it, not by the address of its bytes: views and
tied weights share the record, and bytes are reused. While a weak reference to the record is held, the address stays
taken.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_CONTAINERS = (list, tuple, set, frozenset)


def tensors_in(value):
    """Yield every tensor in nested lists, tuples, sets and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, _CONTAINERS):
        for item in value:
            yield from tensors_in(item)


def storages_in(value):
    """Yield ``(key, bytes, storage)`` of every tensor nested in a value; the same storage may come again."""
    for tensor in tensors_in(value):
        yield from _storages_of(tensor)


def sizes_in(value):
    """Return ``{key: bytes}`` of the storages of all tensors nested in a value, each counted once."""
    return {key: size for key, size, _ in storages_in(value)}


def element_size(dtype):
    """Return the bytes of one element."""
    return torch.empty((), dtype=dtype).element_size()


def _storages_of(tensor):
    parts = _parts_of(tensor)
    if parts is not None:
        for part in parts:
            yield from storages_in(part)
        return
    try:
        storage = (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)()
    except (RuntimeError, NotImplementedError):  # wrapped for a transform, or of a backend with memory of its own kind
        return
    size = storage.nbytes() if hasattr(storage, "nbytes") else storage.size() * storage.element_size()
    if size:
        yield storage._cdata, size, storage


def _parts_of(tensor):
    """Return the plain tensors that a tensor is made of (sparse ones, wrappers such as DTensor), or None."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout is not torch.strided:  # compressed sparse ones; what else there is has no storage to ask
        names = ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values")
        return [part for part in (_called(tensor, name) for name in names) if part is not None]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or flatten is None:
        return None
    return [getattr(tensor, name) for name in flatten()[0]]


def _called(tensor, name):
    try:
        return getattr(tensor, name)()
    except (AttributeError, RuntimeError):  # each compressed layout has some of them
        return None


class StorageTable:
    """Storages by key, held weakly, and an upper bound of the bytes of those that live."""

    def __init__(self):
        self._entries = {}  # key -> (weak reference, bytes)
        self.bound = 0

    def add(self, key, size, storage):
        """Enter a storage."""
        self._entries[key] = StorageWeakRef(storage), size
        self.bound += size

    def living(self):
        """Return ``{key: bytes}`` of those that still live, and forget the others."""
        self._entries = {key: entry for key, entry in list(self._entries.items()) if not entry[0].expired()}
        sizes = {key: size for key, (_, size) in self._entries.items()}
        self.bound = sum(sizes.values())
        return sizes

    def references(self, keys):
        """Return ``{key: weak reference}``: while one is held no other storage has that key."""
        return {key: self._entries[key][0] for key in keys}

    def clear(self):
        """Forget all."""
        self._entries = {}
        self.bound = 0

    def __contains__(self, key):
        return key in self._entries
