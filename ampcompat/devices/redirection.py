"""Put the table of redirections in force, and take it back.

Owns: ``Redirection``: which replacement each row gets, and the stack that undoes them.
Must not touch: what the replacements do; their rooms know.
The surprise: torch's own lists of what makes tensors are read before anything is replaced: torch keeps them for good,
and would keep our wrappers.
"""

import functools
import importlib
import sys
from contextlib import contextmanager
from types import FunctionType

import torch

from ..backends import compiling, scripting
from ..parts.patching import PatchStack
from ..tables import redirections
from . import arguments, facades, movement, one_device, precision, refusals, streams, tensor_types
from .answers import Answers
from .target import Target
from .watching import ImportWatch

_ROOMS = {
    "facades": facades,
    "movement": movement,
    "one_device": one_device,
    "precision": precision,
    "refusals": refusals,
    "streams": streams,
    "tensor_types": tensor_types,
}


class Redirection:
    """CUDA redirected to one device, until ``undo``.

    Args:
        device: "cpu", "mps" or "xpu".
    """

    def __init__(self, device):
        self.target = Target(device)
        self._answers = Answers(self.target)
        self._patches = PatchStack()
        self._originals = []  # (owner, name, entry) of functions that TorchScript must see
        awaited = [name for name in redirections.LATE_MODULES if name not in sys.modules]
        self._watch = ImportWatch(awaited, self._around)

    def begin(self):
        """Put every row in force whose owner this torch has."""
        _let_torch_learn_its_own()
        loaded = [None] + [name for name in redirections.LATE_MODULES if name in sys.modules]
        try:
            self._apply([row for row in redirections.rows() if redirections.late_module(row) in loaded])
            scripting.script_originals(self._originals, self._patches)
            compiling.teach_names(self._patches)
        except BaseException:
            self.undo()
            raise
        self._watch.start()

    def undo(self):
        """Put everything back."""
        self._watch.stop()
        self._patches.undo()

    @contextmanager
    def _around(self, module):
        """Let a module be imported; then put its rows in force."""
        yield
        self._apply([row for row in redirections.rows() if redirections.late_module(row) == module])

    def _apply(self, rows):
        planned = []
        for row in rows:
            owner = resolved(row.owner)
            for name in row.names:
                if owner is not None and (hasattr(owner, name) or row.how == redirections.ADDED):
                    planned.append((owner, name, getattr(owner, name, _nothing), row))
        replaced = [(owner, name, entry, self._replacement(row, name, entry)) for owner, name, entry, row in planned]
        for owner, name, entry, replacement in replaced:
            if replacement is not entry:
                if owner is torch and isinstance(replacement, FunctionType):
                    replacement.__module__, replacement.__qualname__ = "torch", name  # where a pickle finds it
                    vars(replacement)[compiling.MARK] = True
                self._patches.set(owner, name, replacement)
                if owner is torch and _is_function(entry):
                    self._originals.append((owner, name, entry))

    def _replacement(self, row, name, entry):
        if row.how == redirections.FACTORY:
            return _factory(self.target, entry)
        if row.how == redirections.ARGUMENTS:
            return arguments.redirected(self.target, entry, row.detail)
        if row.how == redirections.ANSWER:
            return _named_as(entry, getattr(self._answers, name))
        if row.how in (redirections.NOTHING, redirections.ADDED):
            return _named_as(entry, _nothing)
        if row.how == redirections.REFUSED:
            return refusals.refused(row.owner + "." + name, self.target, entry, row.detail)
        room, maker = row.detail.split(".")
        return getattr(_ROOMS[room], maker)(self.target, entry)


def resolved(dotted):
    """Return the module or class of this name, or None where this torch has none."""
    parts = dotted.split(".")
    owner = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        try:
            owner = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            owner = getattr(owner, part, None)
    return owner


def _is_function(entry):
    """Return whether an entry is a function, not a class."""
    return callable(entry) and not isinstance(entry, type)


def _factory(target, original):
    @functools.wraps(original)
    def make(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = target.of(kwargs["device"])
        if "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return make


def _named_as(original, function):
    @functools.wraps(original)
    def stand_in(*args, **kwargs):
        return function(*args, **kwargs)

    return stand_in


def _nothing(*args, **kwargs):
    return None


def _let_torch_learn_its_own():
    device_room = getattr(torch.utils, "_device", None)
    if device_room is not None:
        device_room._device_constructors()
