"""``Writes``: the params that may have been written through ``param.data``, which changes no version counter.

The tensor that ``.data`` returns, and one that is assigned to it, has its own version counter. A param counts as
possibly written after such an access, and as long as such a tensor is alive.
"""

import functools
import weakref
from contextlib import nullcontext
from threading import get_ident

import torch

from ..written_memory import watch_data


class Writes:
    """The watched params, and those that may have been written since the last ``clear``."""

    def __init__(self):
        self._watched = {}  # id -> weak reference to the param
        self._recorded = {}  # id -> weak references to tensors that share the param's memory
        self._is_open = False
        self._paused_threads = set()  # threads that are in an optimizer's step

    def open(self, patches):
        """Watch ``torch.Tensor.data`` from now on; undone by ``patches``."""
        if not self._is_open:
            self._is_open = True
            patches.defer(self._close)
            watch_data(torch.Tensor, self._record, self._record_assigned, patches)

    def _close(self):
        self._is_open = False

    def _record(self, param, alias):
        key = id(param)
        watched = self._watched.get(key)
        if watched is not None and watched() is param and get_ident() not in self._paused_threads:
            alive = [each for each in self._recorded.get(key, ()) if each() is not None]
            self._recorded[key] = alive + [weakref.ref(alias)]

    def _record_assigned(self, param, value, device):
        for alias in (value, value._base):
            if alias is not None:
                self._record(param, alias)

    def watch(self, params):
        """Watch these params too."""
        for param in params:
            self._watched[id(param)] = weakref.ref(param, functools.partial(self._forget, id(param)))

    def _forget(self, key, reference):
        if self._watched.get(key) is reference:
            del self._watched[key]
            self._recorded.pop(key, None)

    def paused(self):
        """Return a context manager that notes no writes of this thread: those of an optimizer's own step."""
        threads = self._paused_threads
        return _Switched(threads.add, threads.discard) if self._is_open else nullcontext()

    def resumed(self):
        """Return a context manager that notes writes again, in a closure called by a step."""
        threads = self._paused_threads
        return _Switched(threads.discard, threads.add) if self._is_open else nullcontext()

    def __bool__(self):
        return bool(self._recorded)

    def __contains__(self, param):
        return id(param) in self._recorded

    def clear(self, params):
        """Clear the notes of these params, except of those with a ``.data`` tensor that is still alive."""
        for param in params if self._recorded else ():
            aliases = self._recorded.get(id(param))
            if aliases is not None and all(alias() is None for alias in aliases):
                self._recorded.pop(id(param), None)


class _Switched:
    __slots__ = ("_enter", "_leave")

    def __init__(self, enter, leave):
        self._enter, self._leave = enter, leave

    def __enter__(self):
        self._enter(get_ident())

    def __exit__(self, *exc_info):
        self._leave(get_ident())
