"""A cache of the casts of weights, which are made once per iteration.

A cast is valid for one version of a weight. While something may write to the weight's memory without moving the version
(``memory_aliases``), the weight is cast again at each use.
"""

import threading
import weakref

import torch

from ..torch_compat.fake_tensors import address, is_fake_type
from ..torch_compat.thread_context import (
    functorch_level,
    in_inference_mode,
    is_capturing_cuda_graph,
    jit_tracing_state,
)
from .compile import is_compiling
from .memory_aliases import memory_of

Parameter = torch.nn.Parameter
_Tensor = torch.Tensor
_grad_is_enabled = torch.is_grad_enabled


def _mode_without_grad():
    return "inference" if in_inference_mode() else False


def is_weight(tensor):
    """Return whether the casts of a tensor are cached: it is a plain parameter, or a leaf that requires a gradient."""
    kind = type(tensor)
    return kind is Parameter or (_is_plain(kind) and tensor.requires_grad and tensor.is_leaf)


def _is_plain(kind):
    return kind is _Tensor or is_fake_type(kind)


def _is_cacheable(weight):
    """Return whether a weight has a version (not in inference mode) and memory (not if it is sparse)."""
    return not (is_compiling() or getattr(weight, "is_inference", bool)() or weight.layout is not torch.strided)


class _Entry:
    """What is known of one weight.

    ``cached`` is None or (cast, (version, address, requires_grad) of the weight, grad mode, casting thread). It is only
    replaced as a whole, because other threads read it.
    """

    __slots__ = ("reference", "address", "memory", "cached")

    def __init__(self, reference):
        self.reference = reference
        self.address = self.memory = self.cached = None


class CastingThread(threading.local):
    """The thread for which casts are made: the thread's own ``token``, or that of the thread it recomputes for.

    A thread identifier cannot be used: it may be reused by a later thread.
    """

    def __init__(self):
        self.token = object()


class WeightCache:
    """Casts of weights by ``make``, one per weight, for all threads.

    Args:
        make: weight -> its cast.
        aliases: the ``Aliases`` of all tensors.
        casting_thread: the ``CastingThread`` that identifies threads.
    """

    def __init__(self, make, aliases, casting_thread):
        self._make = make
        self._aliases = aliases
        self._entries = {}  # id of a weight -> its entry
        self._casting_thread = casting_thread
        self.is_empty = True  # no weight has a cast here

    def cast(self, weight):
        """Return ``make(weight)``, or the result of an earlier call if it is still valid.

        A cast made without gradients is never returned when they are enabled, nor one of inference mode outside it.
        """
        if functorch_level() is not None or jit_tracing_state() is not None:  # casts made here belong to the transform
            return self._make(weight)
        if weight.is_cuda and is_capturing_cuda_graph():  # the graph must make its casts anew at every replay
            return self._make(weight)
        entry = self._entries.get(id(weight))
        if entry is None or entry.reference() is not weight:
            if not _is_cacheable(weight):
                return self._make(weight)
            entry = self._add_entry(weight)
        mode = True if _grad_is_enabled() else _mode_without_grad()
        # Read before the cast is made: another thread may change the weight meanwhile.
        where = weight.data_ptr() if type(weight) is Parameter else address(weight)
        state = (weight._version, where, weight.requires_grad)
        cached = entry.cached
        if cached is not None and cached[1] == state and cached[2] in (mode, True):
            return cached[0]
        if state[1] != entry.address:
            entry.address, entry.memory = state[1], memory_of(weight)
        cast = self._make(weight)
        if _is_plain(type(cast)):
            entry.cached = (cast, state, mode, self._casting_thread.token)
            self.is_empty = False
            # Asked last: an alias that is recorded meanwhile drops the cast.
            if self._aliases.references and self._aliases.has(entry.memory):
                entry.cached = None
        return cast

    def _add_entry(self, weight):
        entry = _Entry(weakref.ref(weight, _Forget(self, id(weight))))
        with self._aliases.lock:
            self._entries[id(weight)] = entry
        return entry

    def forget_dead(self, key, reference):
        """Drop the entry of a weight that died."""
        with self._aliases.lock:
            entry = self._entries.get(key)
            if entry is not None and entry.reference is reference:
                del self._entries[key]

    def forget_memory(self, memory):
        """Drop the casts of the weights in this memory."""
        with self._aliases.lock:
            if self.is_empty:
                return
            for entry in self._entries.copy().values():  # a copy: garbage collection may run any code
                if entry.memory == memory:
                    entry.cached = None

    def forget_weight(self, weight):
        """Drop the casts of one weight."""
        entry = self._entries.get(id(weight))
        if entry is not None:
            entry.cached = None

    def forget_all(self):
        """Drop every cast, whichever thread made it. The recorded aliases stay."""
        self.is_empty = True
        for entry in self._entries.copy().values():
            entry.cached = None

    def clear(self, weights=list):
        """Drop the casts that this thread has made, and those of some weights, whichever thread made them.

        Another thread may be in the middle of its forward pass. A weight that it uses twice must be cast once, or its
        gradient is rounded differently.

        Args:
            weights: () -> the weights; called only if other threads have casts here.
        """
        is_left, mine = False, self._casting_thread.token
        with self._aliases.lock:  # so that ``forget_memory`` in another thread does not take the cache for empty
            self.is_empty = True
            for entry in self._entries.copy().values():
                cached = entry.cached
                if cached is not None and cached[-1] is mine:
                    entry.cached = None
                is_left = is_left or entry.cached is not None
            if is_left:
                self.is_empty = False
        if is_left:
            for weight in weights():
                self.forget_weight(weight)

    def __len__(self):
        return sum(entry.cached is not None for entry in self._entries.copy().values())


class _Forget:
    """Weak reference callback: drop the entry of a weight that died. Holds the cache weakly itself."""

    __slots__ = ("_cache", "_key")

    def __init__(self, cache, key):
        self._cache = weakref.ref(cache)
        self._key = key

    def __call__(self, reference):
        cache = self._cache()
        if cache is not None:
            cache.forget_dead(self._key, reference)
