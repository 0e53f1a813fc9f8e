"""What Python runs when it starts under ``python -m ampcompat run --device``: see ``ampcompat/devices/startup.py``.

Owns: the call, and the ``sitecustomize`` that this file hides, which is executed in its place.
Must not touch: torch; a process that never imports it pays for two small files.
The surprise: after this, ``sitecustomize`` in ``sys.modules`` is the hidden one, where there is one.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin():
    if importlib.util.find_spec("ampcompat") is None:  # a checkout that is on nobody's path
        sys.path.append(os.path.abspath(os.path.join(_HERE, os.pardir, os.pardir, os.pardir)))
    from ampcompat.devices import startup

    startup.watch()


def _run_the_hidden_one():
    folders = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_begin()
_run_the_hidden_one()
