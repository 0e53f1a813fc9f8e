"""ampcompat: Apex's mixed-precision API on any PyTorch and any device.

Owns: the names that users import: ``amp`` is the door that scripts written for Apex know; ``session``, ``current`` and
``reset`` are what Apex never had.
Must not touch: anything. Importing changes nothing: no patch, no alias, no print.
The surprise: torch is not imported until one of these names is used, so that the command line starts at once.

The rooms, a layer importing only from those above it in this list:

    errors      one small tree; user errors are also RuntimeError
    tables      data, no behaviour: opt levels, op rules, facts about the installed torch
    parts       mechanisms, each usable alone: casting, patching, scaler, models, optimizers, …
    backends    who makes a function run in the right dtype: native autocast, or our own wrappers
    runtime     sessions, and what is open now
    apex        the annex: what ``apex`` means, nowhere else
    amp, sessions       the doors
    cli         the desk: python -m ampcompat
"""

import importlib

__version__ = "0.1.0"

__all__ = ["amp", "current", "reset", "session"]

_HOMES = {"amp": None, "session": "sessions", "current": "sessions", "reset": "sessions"}


def __getattr__(name):
    """Import the door behind a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    module = importlib.import_module("." + (_HOMES[name] or name), __name__)
    found = module if _HOMES[name] is None else getattr(module, name)
    globals()[name] = found
    return found


def __dir__():
    return sorted(set(globals()) | set(__all__))
