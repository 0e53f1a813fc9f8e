"""Find the owner of an op table row in the installed torch, and replace a function there in its own form.

One owner may be named by a string in one row and be a module object in another (a user's registration), so rows are
compared by the object that they name.
"""

import functools
import inspect

from torch.nn.modules import rnn

from ...support.torch_compat import torch_names


@functools.lru_cache(maxsize=None)
def _find_owner(name):
    """Return the module or class of this name, or None where this torch has none."""
    if name == "torch._VF":  # torch 1.3 keeps it elsewhere, but the recurrent layers import it
        return rnn._VF
    return torch_names.find(name)


def place(rows):
    """Return [(owner object, row)] for the names that exist; the last of several rows for one function."""
    placed = {}
    for row in rows:
        owner = _find_owner(row.owner) if isinstance(row.owner, str) else row.owner
        if owner is not None and hasattr(owner, row.name):
            placed[(id(owner), row.name)] = (owner, row)
    return list(placed.values())


def replace(patches, owner, name, wrap):
    """Set ``owner.name`` to ``wrap`` of the function there, keeping its form (static method, class method or plain).

    Returns:
        (owner, name, what was there), with which the original can be set again.
    """
    raw = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
    patches.set(owner, name, _same_form(raw, wrap))
    return owner, name, raw


def _same_form(raw, wrap):
    if isinstance(raw, staticmethod):
        return staticmethod(wrap(raw.__func__))
    if isinstance(raw, classmethod) or type(raw).__name__ == "classmethod_descriptor":

        def of_class(cls, *args, **kwargs):
            return raw.__get__(None, cls)(*args, **kwargs)

        return classmethod(wrap(of_class))
    return wrap(raw)
