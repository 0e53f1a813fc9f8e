"""Executed by Python at startup under ``python -m ampcompat run`` with ``--device`` or ``--opt-level``.

See ``ampcompat/cuda_redirect/device_startup.py`` and ``ampcompat/tools/forced_levels/level_startup.py``.

It executes the ``sitecustomize`` that this file shadows, which is in ``sys.modules`` afterwards. A process that never
imports torch only imports two small files.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install():
    if importlib.util.find_spec("ampcompat") is None:  # a checkout that is not on the path
        sys.path.append(os.path.abspath(os.path.join(_HERE, os.pardir, os.pardir, os.pardir)))
    from ampcompat.cuda_redirect import device_startup as redirection
    from ampcompat.tools.forced_levels import level_startup as levels

    redirection.install_import_hook()
    levels.install_import_hook()


def _run_shadowed():
    folders = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install()
_run_shadowed()
