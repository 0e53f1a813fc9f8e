"""``WrittenMemory``: which tensors may have been written to without a change of their version counter.

``weight.data.clamp_()`` does not change ``weight._version``, because ``.data`` has its own version counter, and writing
to ``weight.detach().numpy()`` changes no counter at all. So ``Tensor.data`` and ``Tensor.numpy`` are replaced by
functions that note what they return: an alias, through which a script may write as long as it exists.

What a script has written to a weight or a gradient is known by its version counter. So on devices where
``torch._foreach_*_`` moves none (torch_xla's, for one), these functions are replaced by ones that do.
"""

import functools
import inspect
import os
import threading
import weakref
from collections import deque
from threading import get_ident

import torch

from . import swapped_tensors
from .torch_compat import features

#: Methods that end in "_" and do not write values.
_WITHOUT_WRITES = frozenset("requires_grad_ rename_ detach_ share_memory_".split())
_OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()


def watch_methods_in_place(kind, may_be_written, patches):
    """Call ``may_be_written(tensor)`` before a method of a class writes to a tensor in place.

    Args:
        kind: ``torch.nn.Parameter``, or another subclass of ``torch.Tensor``.
        may_be_written: the function.
        patches: the ``PatchStack`` that undoes it.
    """
    public = [name for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")]
    operators = [f"__i{name}__" for name in _OPERATORS if hasattr(torch.Tensor, f"__i{name}__")]
    for name in sorted(set(public) - _WITHOUT_WRITES) + operators + ["__setitem__"]:
        patches.set(kind, name, _telling(name, may_be_written))


def _telling(name, may_be_written):
    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        may_be_written(self)
        return original(self, *args, **kwargs)

    return method


_Tensor = torch.Tensor
_PLAIN = (_Tensor, torch.nn.Parameter)


def _make_lock():
    global _lock
    _lock = threading.RLock()  # reentrant: garbage collection may run any code while it is held


_make_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_lock)  # a lock held by another thread would never be released


def memory_of(tensor):
    """Return the address of a tensor's memory, the same for all its views; a tuple of its id if that is not known."""
    if type(tensor) not in _PLAIN:  # fake and wrapped tensors among others
        return (id(tensor),)
    try:
        return (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse
        return (id(tensor),)


class WrittenMemory:
    """Whether watched tensors may have been written to without a change of their version counter.

    ``tensor in written``: since ``watch``, or the last ``clear`` of this tensor, an alias of its memory was created by
    ``.data`` or ``.numpy()`` of this tensor or of any that shares its memory, or its ``.data`` was assigned; or such an
    alias still exists. ``written.noted``: the ids of the watched tensors for which this is so.

    Writes that change the version counter are not noted, and neither are writes through DLPack, a storage, or kernels
    that get an address. Any thread may call the methods. Tensors are referenced weakly, except while
    ``torch.utils.swap_tensors`` runs, which refuses such tensors; both count as written after it.

    Args:
        may_be_written: called with the id of a watched tensor when an alias of it was created, and before its ``.data``
            is assigned, so before a script can write to it in these ways.
    """

    def __init__(self, may_be_written=None):
        self.may_be_written = may_be_written
        self._watched = {}  # id -> (weak reference to the tensor, its memory when it was watched)
        self._ids = {}  # memory -> ids of watched tensors
        self.noted = set()  # ids of watched tensors that may have been written
        self._aliases = {}  # ``memory_of`` a tensor -> weak references to aliases of it, created while this was open
        self._freed = deque()  # memory of aliases that were freed; weakref callbacks may run at any time: no lock
        self._is_open = False
        self._paused_threads = threads = set()
        #: Context manager: nothing is noted in this thread, for an optimizer's own step.
        self.paused = _Switched(threads.add, threads.discard)
        #: Within it: writes are noted again, for a closure called by a step.
        self.resumed = _Switched(threads.discard, threads.add)
        swapped_tensors.holders.add(self)

    def open(self, patches):
        """Note aliases from now on; undone by ``patches``. Opening it twice has no further effect."""
        if not self._is_open:
            patches.defer(self._close)
            self._is_open = True
            data = inspect.getattr_static(_Tensor, "data")

            def get_data(tensor):
                alias = data.__get__(tensor, type(tensor))
                self._alias_made(tensor, alias)
                return alias

            def set_data(tensor, value):
                self._assigning(tensor)
                data.__set__(tensor, value)
                self._assigned(tensor, value)

            patches.set(_Tensor, "data", _Data(data, get_data, set_data))
            patches.wrap(_Tensor, "numpy", self._note_array)
            swapped_tensors.allow(patches)

    def _close(self):
        self._is_open = False
        self._aliases.clear()

    def watch(self, tensors, are_written=False):
        """Watch these tensors at their current memory. One that already has an alias counts as written."""
        for tensor in tensors:
            memory = memory_of(tensor)
            with _lock:
                self._watch_at(tensor, memory)
                if get_ident() not in self._paused_threads and (are_written or self._has_aliases(memory)):
                    self.noted.add(id(tensor))

    def leave_memory(self, tensors):
        """Stop watching the former memory of these tensors: it is freed, and other tensors may get it."""
        with _lock:
            for tensor in filter(self._is_watched, tensors):
                self._watch_at(tensor, None)

    def _watch_at(self, tensor, memory):
        key = id(tensor)
        reference = self._watched[key][0] if self._is_watched(tensor) else None
        self._forget(key)
        self._watched[key] = reference or weakref.ref(tensor, functools.partial(self._died, key)), memory
        if memory:
            self._ids.setdefault(memory, set()).add(key)

    def _forget(self, key):
        """Forget a tensor and where it is, but not that it is noted."""
        _, memory = self._watched.pop(key, (None, None))
        sharing = self._ids.get(memory, set())
        sharing.discard(key)
        if not sharing:
            self._ids.pop(memory, None)

    def _died(self, key, reference):
        with _lock:
            if self._watched.get(key, (None, None))[0] is reference:
                self._forget(key)
                self.noted.discard(key)

    def _is_watched(self, tensor):
        reference, _ = self._watched.get(id(tensor), (None, None))
        return reference is not None and reference() is tensor

    def release(self, tensor):
        """Stop watching a tensor that is being swapped; return a function that watches it again."""
        with _lock:
            for references in self._aliases.values():  # it no longer shares its memory
                references[:] = [reference for reference in references if reference() is not tensor]
            self._freed.extend(self._aliases)
            if not self._is_watched(tensor):
                return None
            self._forget(id(tensor))
        return functools.partial(self.watch, [tensor], are_written=True)

    def note(self, tensor, memory, is_assigned=False):
        """Note that this memory, that of ``tensor``, may be written to; ``is_assigned``: it has been."""
        if (memory in self._ids or self._is_watched(tensor)) and get_ident() not in self._paused_threads:
            keys = self._keys_of(tensor, memory)
            self._call(keys - {id(tensor)} if is_assigned else keys)
            with _lock:
                self.noted.update(keys)

    def _note_array(self, numpy, tensor, *args, **kwargs):
        array = numpy(tensor, *args, **kwargs)
        self._alias_made(tensor, array)
        return array

    def _alias_made(self, tensor, alias):
        memory = memory_of(tensor)
        self._add_aliases(memory, [alias])
        self.note(tensor, memory)

    def _assigning(self, tensor):
        if self.may_be_written is not None and get_ident() not in self._paused_threads:
            self._call(self._keys_of(tensor, memory_of(tensor)))

    def _assigned(self, tensor, value):
        memory = memory_of(tensor)
        self._add_aliases(memory, [each for each in (value, value._base) if each is not None and each is not tensor])
        with _lock:
            if self._is_watched(tensor):
                self._watch_at(tensor, memory)
        self.note(tensor, memory, is_assigned=True)

    def _add_aliases(self, memory, aliases):
        if memory and aliases:  # 0: an empty tensor, or one on "meta"
            with _lock:
                self._has_aliases(memory)  # drop what was freed
                references = [weakref.ref(alias, lambda reference: self._freed.append(memory)) for alias in aliases]
                self._aliases.setdefault(memory, []).extend(references)

    def _has_aliases(self, memory):
        """Return whether this memory has living aliases, also such that were made before its tensor was watched."""
        while self._freed:
            freed = self._freed.popleft()
            alive = [reference for reference in self._aliases.pop(freed, ()) if reference() is not None]
            if alive:
                self._aliases[freed] = alive
        return memory in self._aliases

    def _keys_of(self, tensor, memory):
        return set(self._ids.get(memory, ())).union([id(tensor)] if self._is_watched(tensor) else ())

    def _call(self, keys):
        for key in keys if self.may_be_written is not None else ():
            self.may_be_written(key)

    def __contains__(self, tensor):
        return id(tensor) in self.noted

    def clear(self, tensors):
        """Consider these tensors unwritten from now on, except those with an alias that still exists."""
        for tensor in [tensor for tensor in tensors if tensor in self] if self.noted else ():
            with _lock:  # both: ``share_memory_`` moves memory
                if not (self._has_aliases(self._watched[id(tensor)][1]) or self._has_aliases(memory_of(tensor))):
                    self.noted.discard(id(tensor))


class _Data(property):
    """``Tensor.data`` with functions that note; what torch gives to function modes and subclasses are its own.

    Torch looks both up in the property whenever a mode is active, also where ampcompat reads and sets data unnoted.
    """

    def __init__(self, data, get_data, set_data):
        super().__init__(get_data, set_data, data.__delete__, data.__doc__)
        self.__get__, self.__set__ = data.__get__, data.__set__


class _Switched:
    __slots__ = ("_enter", "_leave")

    def __init__(self, enter, leave):
        self._enter, self._leave = enter, leave

    def __enter__(self):
        self._enter(get_ident())

    def __exit__(self, *exc_info):
        self._leave(get_ident())


_made = weakref.WeakSet()  # functions that call ``_counting``


def count(tensors, patches):
    """Let foreach functions in place move version counters on the devices of ``tensors``; undone by ``patches``.

    Old torch cannot move a counter alone; its foreach functions, which torch 1.7 has on the CPU, are left as they are.
    """
    if not hasattr(getattr(torch.autograd, "graph", None), "increment_version"):
        return
    if not all([features.foreach_moves_versions(each) for each in {tensor.device.type for tensor in tensors}]):
        names = [name for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_")]
        for name in [name for name in names if getattr(torch, name) not in _made]:
            patches.wrap(torch, name, _counting)
            _made.add(getattr(torch, name))


def _counting(function, tensors, *args, **kwargs):
    before = [tensor._version for tensor in tensors]
    result = function(tensors, *args, **kwargs)
    for tensor, version in zip(tensors, before):
        if tensor._version == version:
            torch.autograd.graph.increment_version(tensor)  # takes several only since torch 2.5
    return result
