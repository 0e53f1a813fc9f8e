"""Old names of classes in pickles: those of ``torch.save(model)`` in ampcompat 0.2.0 refer to moved modules.

A pickle refers to a class by its module. The old modules are entries of ``sys.modules`` that have only these names.
"""

import functools
import importlib
import sys

#: The module in a pickle -> name -> the current (module, name), relative to the package.
_MOVED = {
    "models": {},
    "models.forward": {"ForwardCasts": ("engine.models.forward_conversion", "ForwardConversion")},
    "models.state_dict": {
        "O2StateDictHook": ("engine.models.state_dict", "O2StateDictHook"),
        "MasterTable": ("engine.master_weights.session_masters", "SessionMasters"),
        "_get_nothing": ("engine.models.state_dict", "refresh_nothing"),
    },
}


def register(package):
    """Let pickles find the old names; nothing is imported before one of them is used."""
    for module, names in _MOVED.items():
        moved = type(sys)(f"{package}.{module}", "A module of ampcompat 0.2.0, for pickles.")
        moved.__getattr__ = functools.partial(_find, package, names)
        sys.modules.setdefault(moved.__name__, moved)


def _find(package, names, name):
    if name not in names:
        raise AttributeError(name)
    module, current = names[name]
    return getattr(importlib.import_module(f"{package}.{module}"), current)
