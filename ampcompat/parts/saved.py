"""What autograd keeps for the backward pass, as long as it keeps it.

Owns: ``SavedTensors``, a pair of hooks on what autograd saves, and the account of it.
Must not touch: values. What was saved comes back as it was, or through the hooks of a user that were there before.
The surprise: only the innermost hooks count. So those outside are called from here, and where others are entered inside
(activation checkpointing, offloading for one layer), what they keep is theirs and is not seen.
"""

import functools
from contextlib import contextmanager

import torch

from ..errors import AmpError
from ..tables import torch_facts
from .patching import PatchStack
from .storages import sizes_in

#: A new peak is looked at when it is greater by this share: an error that nobody sees, for many looks less.
RESOLUTION = 1e-3


class SavedTensors:
    """A context manager that counts what autograd saves inside it, until autograd lets go of it.

    Args:
        on_growth: called, without arguments, when more is kept than ever before, by a share of ``RESOLUTION``; or None.
    """

    def __init__(self, on_growth=None):
        self._on_growth = on_growth
        self._bytes = 0
        self._limit = 0
        self._holders = {}  # key of a storage -> how many saved tensors stand on it
        self._sizes = {}  # key of a storage -> bytes
        self._outer = None
        self._hooks = None

    def __enter__(self):
        self._patches = PatchStack()
        graph = torch.autograd.graph
        if hasattr(graph, "disable_saved_tensors_hooks"):
            self._patches.set(graph, "disable_saved_tensors_hooks", self._without(graph.disable_saved_tensors_hooks))
        self._push()
        return self

    def __exit__(self, *exc_info):
        self._pop()
        self._patches.undo()

    def _push(self):
        self._outer = torch_facts.saved_tensor_hooks_in_force()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def _pop(self):
        self._hooks.__exit__(None, None, None)
        self._outer = self._hooks = None

    def _without(self, disable):
        """Return ``disable`` working where nobody but us has hooks in force: torch.func refuses to begin among any."""

        @contextmanager
        @functools.wraps(disable)
        def disabled(*args, **kwargs):
            ours = (self._pack, self._unpack)
            is_ours = self._hooks is not None and torch_facts.saved_tensor_hooks_in_force() == ours
            if is_ours:
                self._pop()
            try:
                with disable(*args, **kwargs):
                    yield
            finally:
                if is_ours:
                    self._push()

        return disabled

    def sizes(self):
        """Return ``{key: bytes}`` of the storages that autograd keeps now."""
        return dict(self._sizes)

    def _pack(self, tensor):
        outer = self._outer
        # Detached, since an operation's saved result would hold the graph that holds it.
        kept = tensor.detach() if outer is None else outer[0](tensor)
        return _Kept(self, kept, None if outer is None else outer[1], tensor._version)

    @staticmethod
    def _unpack(kept):
        return kept.value()

    def _hold(self, sizes):
        for key, size in sizes.items():
            held = self._holders.get(key, 0)
            self._holders[key] = held + 1
            if not held:
                self._sizes[key] = size
                self._bytes += size
        if self._on_growth is not None and self._bytes > self._limit:
            self._limit = self._bytes * (1 + RESOLUTION)
            self._on_growth()

    def _let_go(self, keys):
        for key in keys:
            left = self._holders.pop(key) - 1
            if left:
                self._holders[key] = left
            else:
                self._bytes -= self._sizes.pop(key)


class _Kept:
    """One saved tensor, or what a user's hook made of it; autograd owns it, and its end is the tensor's."""

    __slots__ = ("_account", "_kept", "_outer_unpack", "_version", "_keys")

    def __init__(self, account, kept, outer_unpack, version):
        self._account = account
        self._kept = kept
        self._outer_unpack = outer_unpack
        self._version = version
        sizes = sizes_in(kept)
        account._hold(sizes)
        self._keys = tuple(sizes)

    def value(self):
        """Return the tensor that was saved."""
        if self._outer_unpack is not None:
            return self._outer_unpack(self._kept)
        # Autograd leaves this check out where there are hooks.
        if self._kept._version != self._version:
            raise AmpError(
                "A tensor that is needed for its gradient was modified in place after it was used: {} of shape {} is "
                "at version {}, expected {}.".format(
                    self._kept.dtype, tuple(self._kept.size()), self._kept._version, self._version
                )
            )
        return self._kept

    def __del__(self):
        self._account._let_go(self._keys)
