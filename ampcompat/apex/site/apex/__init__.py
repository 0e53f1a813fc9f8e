"""ampcompat's stand-in for NVIDIA Apex: the same names, implemented by the package ampcompat.

Owns: nothing; this folder is made of re-exports.
Must not touch: torch, until a submodule is needed. Importing it prints nothing and costs next to nothing.
The surprise: ``import apex`` alone makes ``apex.amp`` and the other submodules available, each loaded at first use.
"""

import importlib
import importlib.util
import sys

from . import _absent


def _find_ampcompat():
    """Make sure that ``import ampcompat`` works: it may be a checkout that is on nobody's path."""
    if importlib.util.find_spec("ampcompat") is None:
        import os

        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4)))


_find_ampcompat()
_absent.watch()


def __getattr__(name):
    full_name = __name__ + "." + name
    if not name.startswith("_") and importlib.util.find_spec(full_name) is not None:
        return importlib.import_module(full_name)
    try:
        return _absent.their_attribute(name)
    except AttributeError:
        raise AttributeError(_absent.explain(full_name)) from None


def __dir__():
    import pkgutil

    carried = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
    return sorted(carried.union(globals()))
