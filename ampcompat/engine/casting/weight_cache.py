"""A cache of the low-precision copies of weights that functions use at O1 and O4, each made once per iteration.

A copy is valid for one version of a weight. While something may write to the weight's memory without moving the version
(``unversioned_writes``), the weight is cast again at each use.
"""

import torch

from ...support.torch_compat.fake_tensors import address, is_fake_type
from ...support.torch_compat.features import version_of
from ...support.torch_compat.thread_context import (
    functorch_level,
    in_inference_mode,
    is_capturing_cuda_graph,
    jit_tracing_state,
)
from .torch_compile import is_compiling

Parameter = torch.nn.Parameter
_Tensor = torch.Tensor
_grad_is_enabled = torch.is_grad_enabled


def _mode_without_grad():
    return "inference" if in_inference_mode() else False


def is_weight(tensor):
    """Return whether copies of a tensor are cached: it is a plain parameter, or a leaf that requires a gradient."""
    kind = type(tensor)
    return kind is Parameter or (_is_plain(kind) and tensor.requires_grad and tensor.is_leaf)


def _is_plain(kind):
    return kind is _Tensor or is_fake_type(kind)


def _is_cacheable(weight):
    """Return whether a weight has a version (not in inference mode) and memory (not if it is sparse)."""
    return not is_compiling() and weight.layout is torch.strided and version_of(weight) is not None


def _belongs_to_its_user(weight):
    """Return whether a copy made now belongs to a function transform, a trace or a CUDA graph, which replays it."""
    if functorch_level() is not None or jit_tracing_state() is not None:
        return True
    return weight.is_cuda and not is_fake_type(type(weight)) and is_capturing_cuda_graph()


class _Entry:
    """What is known of one weight.

    ``cached`` is None or (copy, (version, address, requires_grad) of the weight, grad mode, casting thread). It is only
    replaced as a whole, because other threads read it.
    """

    __slots__ = ("address", "cached")

    def __init__(self):
        self.address = self.cached = None


class WeightCache:
    """Copies of weights by ``make``, one per weight, for all threads.

    Args:
        make: weight -> its copy.
        thread: a thread-local object whose ``token`` identifies the thread for which copies are made.
    """

    def __init__(self, make, written, thread):
        self._make = make
        self.written = written
        entries = self._entries = {}  # id of a weight that ``written`` watches -> its entry
        written.forgotten = lambda key: entries.pop(key, None)
        self._thread = thread
        self.is_empty = True  # no weight has a copy here

    def cast(self, weight):
        """Return ``make(weight)``, or the result of an earlier call if it is still valid.

        A copy made without gradients is never returned when they are enabled, nor one of inference mode outside it.
        """
        if _belongs_to_its_user(weight):
            return self._make(weight)
        entry = self._entries.get(id(weight))
        if entry is None:
            if not _is_cacheable(weight):
                return self._make(weight)
            self.written.watch([weight])
            entry = self._entries.setdefault(id(weight), _Entry())
        mode = True if _grad_is_enabled() else _mode_without_grad()
        # Read before the copy is made: another thread may change the weight meanwhile.
        where = weight.data_ptr() if type(weight) is Parameter else address(weight)
        state = (weight._version, where, weight.requires_grad)
        cached = entry.cached
        if cached is not None and cached[1] == state and cached[2] in (mode, True):
            if id(weight) not in self.written.noted:
                return cached[0]
        return self._cast_anew(entry, weight, state, mode)

    def _cast_anew(self, entry, weight, state, mode):
        written = self.written
        if state[1] != entry.address:
            entry.address = state[1]
            written.watch([weight])
        if id(weight) in written.noted:
            written.clear([weight])
        count = written.count
        copy = self._make(weight)
        entry.cached = None
        # In a FakeTensorMode the copy of a real weight is fake: for that mode alone.
        is_kept = _is_plain(type(copy)) and is_fake_type(type(copy)) is is_fake_type(type(weight))
        if is_kept and id(weight) not in written.noted:
            entry.cached = (copy, state, mode, self._thread.token)
            self.is_empty = False
            if written.count != count:  # another thread may have written it while the copy was made
                entry.cached = None
        return copy

    def forget_weight(self, weight):
        """Drop the copies of one weight."""
        entry = self._entries.get(id(weight))
        if entry is not None:
            entry.cached = None

    def forget_all(self):
        """Drop every copy, whichever thread made it. What may have been written is still known."""
        self.is_empty = True
        for entry in self._entries.copy().values():
            entry.cached = None

    def clear(self, weights=list):
        """Drop the copies that this thread has made, and those of some weights, whichever thread made them.

        Another thread may be in the middle of its forward pass. A weight that it uses twice must be cast once, or its
        gradient is rounded differently.

        Args:
            weights: () -> the weights; called only if other threads have copies here.
        """
        is_left, mine = False, self._thread.token
        self.is_empty = True
        for entry in self._entries.copy().values():  # a copy: garbage collection may run any code
            cached = entry.cached
            if cached is not None and cached[-1] is mine:
                entry.cached = None
            is_left = is_left or entry.cached is not None
        if is_left:
            self.is_empty = False
            for weight in weights():
                self.forget_weight(weight)

    def __len__(self):
        return sum(entry.cached is not None for entry in self._entries.copy().values())
