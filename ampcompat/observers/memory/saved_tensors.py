"""Count the bytes of the tensors that autograd saves for the backward pass, with saved-tensor hooks."""

from contextlib import contextmanager

import torch

from ...errors import AmpError
from ...support.patching import PatchStack
from ...support.torch_compat import thread_context
from .allocations import sizes_in

#: A new peak is sampled only if it is larger by this share: an error of 0.1 % avoids most samples.
RESOLUTION = 1e-3


class SavedTensors:
    """A context manager that counts the tensors that autograd saves in it, until autograd releases them.

    Autograd calls only the innermost hooks. Outer hooks are called from these, so saved tensors are the same as without
    them; tensors saved under inner hooks (activation checkpointing, offloading of one layer) are not counted.

    Args:
        on_growth: called without arguments when more is saved than ever before, by at least ``RESOLUTION``; or None.
    """

    def __init__(self, on_growth=None):
        self._on_growth = on_growth
        self._bytes = 0
        self._limit = 0
        self._counts = {}  # key of a storage -> number of saved tensors that use it
        self._sizes = {}  # key of a storage -> bytes
        self._outer = None
        self._hooks = None

    def __enter__(self):
        self._patches = PatchStack()
        if hasattr(torch.autograd.graph, "disable_saved_tensors_hooks"):
            self._patches.wrap(torch.autograd.graph, "disable_saved_tensors_hooks", self._disabled)
        self._push()
        return self

    def __exit__(self, *exc_info):
        self._pop()
        self._patches.undo()

    def _push(self):
        self._outer = thread_context.saved_tensor_hooks()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def _pop(self):
        self._hooks.__exit__(None, None, None)
        self._outer = self._hooks = None

    @contextmanager
    def _disabled(self, disable, *args, **kwargs):
        """Disable hooks, also if ours are active, but no others: torch.func raises an error otherwise."""
        own_hooks = (self._pack, self._unpack)
        is_innermost = self._hooks is not None and thread_context.saved_tensor_hooks() == own_hooks
        if is_innermost:
            self._pop()
        try:
            with disable(*args, **kwargs):
                yield
        finally:
            if is_innermost:
                self._push()

    def sizes(self):
        """Return ``{key: bytes}`` of the storages currently saved by autograd."""
        return dict(self._sizes)

    def _pack(self, tensor):
        outer = self._outer
        # Detached, since an operation's saved result would otherwise reference the graph that references it.
        packed = tensor.detach() if outer is None else outer[0](tensor)
        return _PackedTensor(self, packed, None if outer is None else outer[1], tensor._version)

    @staticmethod
    def _unpack(packed):
        return packed.tensor()

    def _add(self, sizes):
        for key, size in sizes.items():
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            if not count:
                self._sizes[key] = size
                self._bytes += size
        if self._on_growth is not None and self._bytes > self._limit:
            self._limit = self._bytes * (1 + RESOLUTION)
            self._on_growth()

    def _remove(self, keys):
        for key in keys:
            count = self._counts.pop(key) - 1
            if count:
                self._counts[key] = count
            else:
                self._bytes -= self._sizes.pop(key)


class _PackedTensor:
    """A saved tensor, or the result of an outer pack hook; autograd keeps it as long as the tensor is needed."""

    __slots__ = ("_counter", "_packed", "_outer_unpack", "_version", "_keys")

    def __init__(self, counter, packed, outer_unpack, version):
        self._counter = counter
        self._packed = packed
        self._outer_unpack = outer_unpack
        self._version = version
        sizes = sizes_in(packed)
        counter._add(sizes)
        self._keys = tuple(sizes)

    def tensor(self):
        """Return the tensor that was saved."""
        if self._outer_unpack is not None:
            return self._outer_unpack(self._packed)
        # Autograd itself does not check versions of tensors that hooks have packed.
        if self._packed._version != self._version:
            raise AmpError(
                "A tensor that is needed for its gradient was modified in place after it was used: "
                f"{self._packed.dtype} of shape {tuple(self._packed.size())} is at version {self._packed._version}, "
                f"expected {self._version}."
            )
        return self._packed

    def __del__(self):
        if hasattr(self, "_keys"):  # torch 2.2's compiler makes objects without ``__init__`` while it traces a hook
            self._counter._remove(self._keys)
