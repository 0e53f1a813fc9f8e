"""How ``run --device`` redirects a script and its child processes.

Python imports a module named ``sitecustomize`` when it starts. The folder ``site/`` next to this file contains one, and
is on PYTHONPATH only under ``run --device``. It also executes the ``sitecustomize`` that it shadows, if there is one.
No other way reaches every child (spawned, forked, started by torchrun) without changing how the script is started.
"""

import os

from .after_import import ImportHook

#: The environment variable with the device that replaces CUDA.
VARIABLE = "AMPCOMPAT_DEVICE"

#: The folder with ``sitecustomize.py``.
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

#: The choices of ``run --device``.
DEVICES = ("cpu", "mps", "xpu")


def environment(device):
    """Return the environment variables with which a child Python, and its children, redirect CUDA to ``device``."""
    inherited = os.environ.get("PYTHONPATH")
    path = [entry for entry in inherited.split(os.pathsep) if entry != FOLDER] if inherited else []
    return {VARIABLE: device, "PYTHONPATH": os.pathsep.join([FOLDER] + path)}


def install_import_hook():
    """Redirect CUDA as soon as torch has been imported, if the environment variable is set."""
    device = os.environ.get(VARIABLE)
    if device:
        ImportHook(["torch"], lambda name: _redirect(device)).start()


def _redirect(device):
    from .redirection import Redirection  # it imports torch

    Redirection(device).begin()
