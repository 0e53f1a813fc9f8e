"""``install`` and ``uninstall``: plain ``python script.py`` finds our ``apex``.

Owns: one file, ``ampcompat-apex.pth``, in the site-packages of the running interpreter.
Must not touch: anything else in an environment, another ``apex`` least of all.
The surprise: a ``.pth`` normally *appends* to ``sys.path``; its one line here is an ``import`` statement, which
``site`` executes, so that ours comes first. It loads neither torch nor ampcompat when an interpreter starts.
"""

import os
import site
import sys
import sysconfig

from ..apex.install import SITE, other_apex
from .parsing import LineParser

FILE = "ampcompat-apex.pth"

#: ``site`` executes it once for each time that it comes by the folder, which in a virtual environment is twice.
LINE = "import sys; {0} in sys.path or sys.path.insert(0, {0})\n"

#: What a package named ``apex`` has if it is NVIDIA's, with or without ``amp``.
_APEX_ROOMS = ("optimizers", "normalization", "parallel", "multi_tensor_apply", "fp16_utils")


def install(arguments):
    """Write the ``.pth``; refuse where a real Apex with ``amp`` is installed."""
    parser = _parser("install", "Make `import apex` mean ampcompat's for every script of this Python environment.")
    parser.parse_args(arguments)
    other = other_apex(_site_folders())
    if other and _has(other, "amp"):
        parser.error("NVIDIA Apex with amp is installed at {}; uninstall it first, or use `run`.".format(other))
    path = _path()
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(LINE.format(ascii(SITE)))
    except OSError as error:
        parser.error("cannot write {}: {}.".format(path, error.strerror))
    print("`import apex` now means ampcompat's: wrote {}".format(path))
    if other:
        print(_about(other))
    return 0


def uninstall(arguments):
    """Remove the ``.pth``."""
    parser = _parser("uninstall", "Undo `ampcompat install`.")
    parser.parse_args(arguments)
    path = _path()
    if not os.path.exists(path):
        print("Nothing to undo: there is no {}".format(path))
        return 0
    try:
        os.remove(path)
    except OSError as error:
        parser.error("cannot remove {}: {}.".format(path, error.strerror))
    print("`import apex` is as it was: removed {}".format(path))
    return 0


def _parser(command, description):
    return LineParser(prog="ampcompat " + command, description=description)


def _path():
    return os.path.join(sysconfig.get_paths()["purelib"], FILE)


def _site_folders():
    """Return the folders in which packages are installed, as this interpreter searches them."""
    # The first entry is where the command was started; an `apex` folder there is not installed.
    folders = [folder for folder in sys.path[1:] if folder]
    return folders + [site.getusersitepackages()] if site.ENABLE_USER_SITE else folders


def _has(package, room):
    return any(os.path.exists(os.path.join(package, room + ending)) for ending in ("", ".py"))


def _about(other):
    if any(_has(other, room) for room in _APEX_ROOMS):
        return "The Apex at {} has no amp any more; ampcompat's comes before it.".format(other)
    return "The package named apex at {} is not NVIDIA's (PyPI's apex is a web toolkit); ours comes before it.".format(
        other
    )
