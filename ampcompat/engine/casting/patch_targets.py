"""Find the owner of an op table row in the installed torch, and replace functions there.

One owner may be named by a string in one row and be a module object in another (a user's registration), so rows are
compared by the object that they name.
"""

import functools
import inspect

import torch
from torch.nn.modules import rnn

from ...support.patching import PatchStack
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


def replace_all(patches, replacements):
    """Replace functions, each in its own form (static method, class method or plain), until ``patches`` is undone.

    ``torch.jit.script`` looks functions up by identity, so it finds torch's own while it runs: for the whole process,
    for milliseconds, as a rule when modules are imported or built.

    Args:
        replacements: (owner, name, function that returns the replacement of a function).
    """
    replaced = []
    for owner, name, wrap in replacements:
        raw = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
        replaced.append((owner, name, raw))
        patches.set(owner, name, _same_form(raw, wrap))
    script_originals(replaced, patches)


def script_originals(replaced, patches):
    """Let ``torch.jit.script`` compile the functions that were replaced: (owner, name, what was there)."""
    script = torch.jit.script

    @functools.wraps(script)
    def script_with_originals(obj, optimize=None, _frames_up=0, *args, **kwargs):
        with PatchStack() as restored:
            for owner, name, raw in reversed(replaced):  # the first replacement of a function is that of the original
                restored.set(owner, name, raw)
            # The globals of a scripted class are those of the caller, one frame further up from here.
            return script(obj, optimize, _frames_up + 1, *args, **kwargs)

    patches.set(torch.jit, "script", script_with_originals)


def _same_form(raw, wrap):
    if isinstance(raw, staticmethod):
        return staticmethod(wrap(raw.__func__))
    if isinstance(raw, classmethod) or type(raw).__name__ == "classmethod_descriptor":

        def of_class(cls, *args, **kwargs):
            return raw.__get__(None, cls)(*args, **kwargs)

        return classmethod(wrap(of_class))
    return wrap(raw)
