"""How ``run --opt-level`` reaches a script that does not use Apex, and its child processes.

The ``sitecustomize`` of ``cuda_redirect/site`` calls ``install_import_hook`` when Python starts. The level itself is an
environment variable of ``engine.session.process_state``. Nothing is imported here before the script has imported torch.
"""

import os

from ...cuda_redirect.after_import import ImportHook
from ...cuda_redirect.device_startup import FOLDER

#: The environment variable that says that the level is forced on scripts without Apex too.
VARIABLE = "AMPCOMPAT_FORCES_LEVEL"


def environment():
    """Return the environment variables with which child processes run ``install_import_hook``."""
    inherited = os.environ.get("PYTHONPATH")
    path = [entry for entry in inherited.split(os.pathsep) if entry != FOLDER] if inherited else []
    return {VARIABLE: "1", "PYTHONPATH": os.pathsep.join([FOLDER] + path)}


def install_import_hook():
    """Force the level of the command line as soon as torch has been imported, if ``environment`` was set."""
    if os.environ.get(VARIABLE):
        ImportHook(["torch"], _force).start()


def _force(name):
    from ...engine.session import process_state
    from .forced_level import ForcedLevel  # it imports torch

    level = process_state.command_line().get("opt_level")
    if level:
        ForcedLevel(level, tells_if_unused=True).begin()
