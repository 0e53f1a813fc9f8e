"""Tracks the objects that share the memory of a weight but not its version counter, and may change it unnoticed.

``weight.data.clamp_()`` does not move ``weight._version``, because ``.data`` has a version counter of its own, and
writing into ``weight.detach().numpy()`` moves none at all. So ``Tensor.data`` and ``Tensor.numpy`` record what they
return.
"""

import functools
import threading
import weakref
from collections import deque

import torch

from .thread_state import forget_threads_in_forks

_Tensor = torch.Tensor
_PLAIN = (_Tensor, torch.nn.Parameter)


def memory_of(tensor):
    """Return the address of a tensor's memory, the same for all views of it; None where it has none of its own."""
    if type(tensor) not in _PLAIN:  # fake and wrapped tensors among others
        return None
    try:
        return (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse
        return None


class Aliases:
    """Weak references to what shares memory with a tensor, but not its version counter."""

    def __init__(self):
        self.references = {}  # memory -> weak references to the aliases
        # The memories of aliases that died. A weakref callback may run at any time, so it takes no lock.
        self._dead = deque()
        forget_threads_in_forks(self)

    def forget_threads(self):
        """Make a new lock: one that another thread held would never be released."""
        self.lock = threading.RLock()  # reentrant: garbage collection may run any code while it is held

    def record(self, memory, alias):
        """Remember that ``alias`` may write to this memory as long as it lives."""
        dead = self._dead
        reference = weakref.ref(alias, lambda reference: dead.append(memory))
        with self.lock:
            self._drop_dead()
            self.references.setdefault(memory, []).append(reference)

    def has(self, memory):
        """Return whether an alias may write to this memory without moving the version counter."""
        with self.lock:
            self._drop_dead()
            return memory in self.references

    def _drop_dead(self):
        while self._dead:
            memory = self._dead.popleft()
            alive = [reference for reference in self.references.pop(memory, ()) if reference() is not None]
            if alive:
                self.references[memory] = alive


def watch_aliases(caches, aliases, patches, moved):
    """Make ``Tensor.data`` and ``Tensor.numpy`` record the aliases they return, and ``Tensor.data`` those assigned.

    Args:
        caches: the ``WeightCache`` objects.
        aliases: their ``Aliases``.
        patches: the ``PatchStack`` that undoes it.
        moved: called without arguments when the new data of a tensor is on another device.
    """

    def record(tensor, alias):
        memory = memory_of(tensor)
        if memory:  # 0: an empty tensor, or one on "meta"
            aliases.record(memory, alias)
            for cache in caches:
                cache.forget_memory(memory)

    def record_assigned(tensor, value, before):
        for cache in caches:
            cache.forget_weight(tensor)
        memory = memory_of(tensor)
        for alias in (value, value._base):  # they share this memory from now on
            if alias is not None and memory_of(alias) == memory:
                record(tensor, alias)
        if tensor.device != before:
            moved()

    watch_data(_Tensor, record, record_assigned, patches)
    numpy = _Tensor.numpy

    @functools.wraps(numpy)
    def numpy_and_record(self, *args, **kwargs):
        array = numpy(self, *args, **kwargs)
        record(self, array)
        return array

    patches.set(_Tensor, "numpy", numpy_and_record)


def watch_data(kind, read, assigned, patches):
    """Watch the property ``data`` of a class.

    Args:
        kind: ``torch.Tensor`` or a subclass.
        read: called as ``read(tensor, data)`` when ``tensor.data`` was read.
        assigned: called as ``assigned(tensor, value, device)`` when it was set; ``device`` is the one before.
        patches: the ``PatchStack`` that undoes it.
    """
    own = vars(kind).get("data")

    def original():  # looked up at each call: another library may set it on the base class, and remove it again
        return own or super(kind, kind).data

    def get_data(self):
        alias = original().__get__(self, type(self))
        read(self, alias)
        return alias

    def set_data(self, value):
        before = self.device
        original().__set__(self, value)
        assigned(self, value, before)

    def delete_data(self):
        original().__delete__(self)

    patches.set(kind, "data", property(get_data, set_data, delete_data, original().__doc__))
