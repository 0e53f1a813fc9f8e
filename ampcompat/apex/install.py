"""Make ``import apex`` import this package in this process and its children, and undo that.

``site/`` is put on ``sys.path`` and ``PYTHONPATH``. In a child process, the script's own folder still comes first.
"""

import importlib
import os
import subprocess
import sys

from ..support.child_environment import SITE, ChildEnvironment

#: The state that ``uninstall`` restores, if ``install`` is active in this process.
_active = []


def install():
    """Put this package first on the path of this process and its children. Idempotent.

    Loaded modules of another ``apex`` are removed from ``sys.modules``; references to them stay valid.
    """
    if _active:
        return
    before = os.environ.get("PYTHONPATH")
    _active.append((before, _remove_modules()))
    os.environ.update(ChildEnvironment(has_alias=True).to_env())
    sys.path.insert(0, SITE)
    importlib.invalidate_caches()


def uninstall():
    """Undo ``install``: restore the path, the environment and the modules. Does nothing if it was not called."""
    if not _active:
        return
    before, modules = _active.pop()
    _remove_modules()
    sys.modules.update(modules)
    if SITE in sys.path:
        sys.path.remove(SITE)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__.partition(".")[0] != "apex"]
    importlib.invalidate_caches()


def interpreter_options():
    """Return the options that this interpreter was started with, as in ``python -u -W error -m ampcompat``."""
    # Private, but it is how multiprocessing starts its workers; sys.orig_argv (3.10) mixes options and arguments.
    options = subprocess._args_from_interpreter_flags()
    unbuffered = getattr(sys.stdout, "write_through", False)  # -u, which sys.flags does not record
    return (["-u"] if unbuffered else []) + options


def _remove_modules():
    """Remove every loaded module of ``apex`` and its extensions from ``sys.modules`` and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in ("apex", "amp_C", "apex_C")]
    return {name: sys.modules.pop(name) for name in names}
