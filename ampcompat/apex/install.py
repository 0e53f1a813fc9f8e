"""Make ``import apex`` mean ours, and undo it.

Owns: where ``site/`` is on ``sys.path`` and ``PYTHONPATH``; which loaded ``apex`` modules are set aside.
Must not touch: files (that is ``cli.install``), torch.
The surprise: children inherit it, because it also goes into ``PYTHONPATH``; in a child the script's own folder still
comes first, as Python has it.
"""

import importlib
import os
import sys
from importlib.machinery import PathFinder

from .beside import SITE, other_apex

#: The folder that holds the package ``ampcompat``.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: The installation in force in this process, if any: what ``uninstall`` puts back.
_in_force = []


def install():
    """Put ours first for this process and its children. Idempotent.

    Modules of another ``apex`` that are loaded already are set aside; who holds a reference to them keeps it.
    """
    if _in_force:
        return
    before = os.environ.get("PYTHONPATH")
    _in_force.append((before, _set_aside()))
    os.environ.update(environment())
    sys.path.insert(0, SITE)
    importlib.invalidate_caches()


def uninstall():
    """Put back what ``install`` found: the path, the environment, the modules. Does nothing without it."""
    if not _in_force:
        return
    before, modules = _in_force.pop()
    _set_aside()
    sys.modules.update(modules)
    if SITE in sys.path:
        sys.path.remove(SITE)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__.partition(".")[0] != "apex"]
    importlib.invalidate_caches()


def environment():
    """Return the environment variables with which a child Python finds our ``apex``, and ``ampcompat`` itself."""
    inherited = os.environ.get("PYTHONPATH")
    path = [entry for entry in inherited.split(os.pathsep) if entry != SITE] if inherited else []
    if _found_by_the_first_entry_only() and ROOT not in path:
        path.append(ROOT)
    return {"PYTHONPATH": os.pathsep.join([SITE] + path)}


def shadowed_by(folder):
    """Return the ``apex`` that scripts in ``folder`` find before ours, or None."""
    return other_apex([folder])


def _set_aside():
    """Take every loaded module of ``apex`` and its extensions out of ``sys.modules`` and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in ("apex", "amp_C", "apex_C")]
    return {name: sys.modules.pop(name) for name in names}


def _found_by_the_first_entry_only():
    """Return whether ``ampcompat`` is a checkout in the current folder: a script elsewhere would not find it."""
    return _same(sys.path[0] or os.getcwd(), ROOT) and PathFinder.find_spec("ampcompat", sys.path[1:]) is None


def _same(one, other):
    return os.path.realpath(one) == os.path.realpath(other)
