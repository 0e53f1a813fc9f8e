"""Replace attributes of objects that are not ours, and put every one of them back.

Owns: the only ``setattr`` on foreign objects.
Must not touch: anything but what it is told to; it knows no torch.
The surprise: "back" means the owner's own ``__dict__`` as it was. A name that a class inherited is deleted
again, not set to the inherited value; a static method comes back as a static method. Owners that are neither modules
nor classes are held weakly: a long session must not keep every model of a cross-validation alive.
"""

import weakref
from contextlib import ExitStack
from types import ModuleType

_ABSENT = object()


class PatchStack:
    """A stack of changes, undone in reverse order. Usable as a context manager."""

    def __init__(self):
        self._undo = ExitStack()

    def set(self, owner, name, value):
        """Set ``owner.name = value``; ``undo`` restores the owner's own entry, or its absence."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.callback(_restore, _reference(owner), name, before)

    def defer(self, undo, *args):
        """Call ``undo(*args)`` when the stack is undone: for changes that are not attributes."""
        self._undo.callback(undo, *args)

    def defer_weakly(self, method):
        """Call the bound ``method`` when the stack is undone, if its object still lives."""
        self._undo.callback(_call_if_alive, weakref.WeakMethod(method))

    def absorb(self, other):
        """Take over the changes of ``other``, which is empty afterwards."""
        self._undo.push(other._undo.pop_all().__exit__)

    def undo(self):
        """Undo everything, newest first, even when one of the steps raises."""
        self._undo.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.undo()


def _reference(owner):
    if isinstance(owner, (type, ModuleType)):
        return lambda: owner
    return weakref.ref(owner)


def _restore(reference, name, before):
    owner = reference()
    if owner is None:
        return
    if before is not _ABSENT:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def _call_if_alive(weak_method):
    method = weak_method()
    if method is not None:
        method()
