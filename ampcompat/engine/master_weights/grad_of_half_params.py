"""``.grad`` of half params: after ``scale_loss`` their true gradients are at their float32 masters.

``GradientsOnRead`` asks ``HeldGradients``, which owns the gradients, for the half gradient when a script reads
``param.grad``, so that it takes no memory where nobody does.
"""

import torch

from ...support.tensor_lists import GRADIENT, set_stored_gradient, stored_gradient


class GradientsOnRead:
    """Replaces ``grad`` of ``torch.nn.Parameter`` by a property.

    Masters are plain tensors, so reading theirs does not become slower.

    Args:
        entries: ``{id(half param): MasterEntry}``, which the ``SessionMasters`` keeps up to date.
    """

    def __init__(self, entries):
        self._entries = entries
        self._is_open = False

    def open(self, patches):
        """Replace the property, once; undone by ``patches``."""
        if not self._is_open:
            patches.defer(self._close)
            self._is_open = True
            patches.set(torch.nn.Parameter, "grad", property(self._get, self._set, self._delete, GRADIENT.__doc__))

    def _close(self):
        self._is_open = False

    def _holder(self, param):
        """Return the ``HeldGradients`` of a half param and its master; (None, None) for any other param."""
        entry = self._entries.get(id(param))
        if entry is None or entry.model() is not param or not entry.shows_gradients:
            return None, None
        return entry.gradients(), entry.master

    def _get(self, param):
        if id(param) in self._entries:
            holder, master = self._holder(param)
            if holder is not None:
                return holder.shown(param, master)
        return stored_gradient(param)

    def _set(self, param, gradient):
        before = stored_gradient(param)
        set_stored_gradient(param, gradient)
        if id(param) in self._entries:
            holder, master = self._holder(param)
            if holder is not None:
                holder.was_set(param, master, before)

    def _delete(self, param):
        self._set(param, None)
