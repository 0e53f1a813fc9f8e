"""``Writes``: the params that may have been written through ``param.data``, which changes no version counter.

The tensor that ``.data`` returns, and one that is assigned to it, has its own version counter. A param counts as
possibly written after such an access, and as long as such a tensor is alive.
"""

import weakref
from contextlib import contextmanager
from threading import get_ident

import torch


class Writes:
    """The watched params, and those that may have been written since the last ``settle``."""

    def __init__(self):
        self._watched = weakref.WeakValueDictionary()  # id -> param
        self._noted = {}  # id -> weak references to tensors that share the param's memory
        self._is_open = False
        self._away = set()  # threads that are in an optimizer's step

    def open(self, patches):
        """Watch ``torch.nn.Parameter.data`` from now on; undone by ``patches``."""
        if self._is_open:
            return
        self._is_open = True
        patches.defer(self._close)

        # On Parameter, not on Tensor: activations and gradients have no overhead, and a property that another library
        # sets on Tensor.data, or removes, keeps working.
        def get_data(param):
            alias = torch.Tensor.data.__get__(param, type(param))
            self._note(param, alias)
            return alias

        def set_data(param, value):
            torch.Tensor.data.__set__(param, value)
            self._note(param, value, value._base)

        def delete_data(param):
            torch.Tensor.data.__delete__(param)

        patches.set(torch.nn.Parameter, "data", property(get_data, set_data, delete_data, torch.Tensor.data.__doc__))

    def _close(self):
        self._is_open = False

    def _note(self, param, *aliases):
        key = id(param)
        if self._watched.get(key) is param and get_ident() not in self._away:
            alive = [alias for alias in self._noted.get(key, ()) if alias() is not None]
            self._noted[key] = alive + [weakref.ref(alias) for alias in aliases if alias is not None]

    def watch(self, params):
        """Watch these params too."""
        self._noted = {key: aliases for key, aliases in self._noted.items() if key in self._watched}
        for param in params:
            self._watched[id(param)] = param

    @contextmanager
    def paused(self):
        """Return a context manager that notes no writes of this thread: those of an optimizer's own step."""
        thread = get_ident()
        self._away.add(thread)
        try:
            yield
        finally:
            self._away.discard(thread)

    @contextmanager
    def resumed(self):
        """Return a context manager that notes writes again, in a closure called by a step."""
        thread = get_ident()
        self._away.discard(thread)
        try:
            yield
        finally:
            self._away.add(thread)

    def __bool__(self):
        return bool(self._noted)

    def __contains__(self, param):
        return id(param) in self._noted

    def settle(self, params):
        """Clear the notes of these params, except of those with a ``.data`` tensor that is still alive."""
        for param in params if self._noted else ():
            aliases = self._noted.get(id(param))
            if aliases is not None and all(alias() is None for alias in aliases):
                del self._noted[id(param)]
