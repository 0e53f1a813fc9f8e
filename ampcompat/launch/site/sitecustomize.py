"""Executed by Python at startup under ``ampcompat run`` with ``--device`` or ``--opt-level``.

See ``STARTUP`` in ``ampcompat/support/child_environment.py``. It executes the ``sitecustomize`` that this file shadows,
which is in ``sys.modules`` afterwards. A process that never imports torch only imports two small files.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install():
    if importlib.util.find_spec("ampcompat") is None:  # a checkout that is not on the path
        sys.path.append(os.path.abspath(os.path.join(_HERE, os.pardir, os.pardir, os.pardir)))
    from ampcompat.launch.after_import import ImportHook

    ImportHook(["torch"], _begin).start()


def _begin(name):
    """Redirect CUDA and force the level, as the environment variables say, now that torch has been imported."""
    from ampcompat.support.child_environment import ChildEnvironment

    told = ChildEnvironment.from_env()
    if told.device is not None:
        from ampcompat.launch.cuda_redirect.redirection import Redirection

        Redirection(told.device).begin()
    if told.forces_level and told.opt_level is not None:
        from ampcompat.launch.forced_levels.forced_level import ForcedLevel

        ForcedLevel(told.opt_level, tells_if_unused=True).begin()


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
