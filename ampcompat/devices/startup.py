"""How a redirection reaches a script that ``run`` starts, and its children.

Owns: the environment of such a process, and what happens in it when Python starts.
Must not touch: torch, until the script itself has imported it.
The surprise: Python imports a module named ``sitecustomize`` when it starts; the folder ``site/`` beside this file
holds ours and is on PYTHONPATH only under ``run --device``. It executes the one that it hides, if there is one.
Nothing else reaches every child (spawned, forked, started by torchrun) without touching how the script itself is
started.
"""

import os
from contextlib import contextmanager

from .watching import ImportWatch

#: The environment variable that says which device takes CUDA's place.
VARIABLE = "AMPCOMPAT_DEVICE"

#: The folder with ``sitecustomize.py``.
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

#: What ``run --device`` takes.
DEVICES = ("cpu", "mps", "xpu")


def environment(device):
    """Return the environment variables with which a child Python, and its children, redirect CUDA to ``device``."""
    inherited = os.environ.get("PYTHONPATH")
    path = [entry for entry in inherited.split(os.pathsep) if entry != FOLDER] if inherited else []
    return {VARIABLE: device, "PYTHONPATH": os.pathsep.join([FOLDER] + path)}


def watch():
    """Redirect CUDA as soon as torch has been imported, if the environment says so."""
    device = os.environ.get(VARIABLE)
    if device:
        ImportWatch(["torch"], lambda name: _redirected_afterwards(device)).start()


@contextmanager
def _redirected_afterwards(device):
    yield
    from .redirection import Redirection

    Redirection(device).begin()
