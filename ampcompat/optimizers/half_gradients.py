"""``.grad`` of half params: after ``scale_loss`` their true gradients are at their float32 masters.

``GradientsOnRead`` makes a half gradient when a script reads ``param.grad``, so that it takes no memory where nobody
does. ``HeldGradients`` owns the gradients: it decides what is shown, and takes over what the script changes.
"""

import functools
import weakref

import torch

from ..tensor_lists import GRADIENT, set_stored_gradient, stored_gradient


class GradientsOnRead:
    """Replaces ``grad`` of ``torch.nn.Parameter`` by a property. Masters are plain tensors, which it does not slow."""

    def __init__(self):
        self._known = {}  # id(half param) -> (weak reference to it, its master, weak reference to its HeldGradients)
        self._is_open = False

    def open(self, patches):
        """Replace the property, once; undone by ``patches``."""
        if not self._is_open:
            self._is_open = True
            patches.defer(self._close)
            patches.set(torch.nn.Parameter, "grad", property(self._get, self._set, self._delete, GRADIENT.__doc__))

    def _close(self):
        self._is_open = False

    def add(self, pairs, gradients):
        """Show the gradients of (model, master) pairs, as ``gradients``, their ``HeldGradients``, decide."""
        for model, master in pairs:
            forget = functools.partial(self._known.pop, id(model))
            self._known[id(model)] = weakref.ref(model, forget), master, weakref.ref(gradients)

    def clear(self):
        """Forget all pairs."""
        self._known.clear()

    def _holder(self, param):
        """Return the ``HeldGradients`` of a half param and its master; None for any other param."""
        model, master, gradients = self._known.get(id(param), (None, None, None))
        return (gradients(), master) if model is not None and model() is param else (None, None)

    def _get(self, param):
        gradient = stored_gradient(param)
        if gradient is None and id(param) in self._known:
            holder, master = self._holder(param)
            return None if holder is None else holder.shown(param, master)
        return gradient

    def _set(self, param, gradient):
        set_stored_gradient(param, gradient)
        if id(param) in self._known:
            holder, master = self._holder(param)
            if holder is not None:
                holder.was_set(param, master)

    def _delete(self, param):
        self._set(param, None)
