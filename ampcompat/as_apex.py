"""For notebooks and REPLs: ``import ampcompat.as_apex`` makes ``import apex`` import ampcompat in a running process.

``%load_ext ampcompat.as_apex`` (or ``%load_ext ampcompat``) does the same in IPython, and ``%unload_ext`` undoes it;
``ampcompat.as_apex.undo()`` undoes it everywhere. It is an error if an Apex with ``amp`` is already loaded.
"""

import os
import sys

from .apex import install as _install
from .apex import nvidia_apex as _nvidia_apex
from .errors import AmpError


def use():
    """Make ``import apex`` import ampcompat in this process and its children. Idempotent.

    Importing this module calls it; after ``undo``, call it again.

    Raises:
        AmpError: an Apex with ``amp`` is loaded; its patches of torch would stay.
    """
    loaded = getattr(sys.modules.get("apex"), "__file__", None)
    folder = os.path.dirname(loaded or "")
    if loaded and not _nvidia_apex.is_ours(folder) and _nvidia_apex.has_submodule(folder, "amp"):
        raise AmpError(
            f"the Apex at {folder} is loaded in this process, with its amp, so it cannot be replaced. Restart the "
            "kernel or interpreter, and import ampcompat.as_apex before apex."
        )
    _install.install()


def undo():
    """Undo ``use``: ``import apex`` then finds what it found before. Names that were already imported stay valid."""
    _install.uninstall()


def load_ipython_extension(shell):
    """``%load_ext ampcompat.as_apex``."""
    use()


def unload_ipython_extension(shell):
    """``%unload_ext ampcompat.as_apex``."""
    undo()


use()
