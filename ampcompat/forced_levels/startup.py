"""How ``run --opt-level`` reaches a script that does not use Apex, and its child processes.

The ``sitecustomize`` of ``cuda_redirect/site`` calls ``install_import_hook`` when Python starts. The level itself is an
environment variable of ``training.state``. Nothing here imports torch.
"""

import os

from ..cuda_redirect.import_hook import ImportHook
from ..cuda_redirect.startup import FOLDER
from ..training import state


def environment():
    """Return the environment variables with which a child Python, and its children, run ``install_import_hook``."""
    inherited = os.environ.get("PYTHONPATH")
    path = [entry for entry in inherited.split(os.pathsep) if entry != FOLDER] if inherited else []
    return {"PYTHONPATH": os.pathsep.join([FOLDER] + path)}


def install_import_hook():
    """Force the level of the command line, if there is one, as soon as torch has been imported."""
    level = state.command_line().get("opt_level")
    if level:
        ImportHook(["torch"], lambda name: _force(level)).start()


def _force(level):
    from .forced_level import ForcedLevel  # it imports torch

    ForcedLevel(level).begin()
