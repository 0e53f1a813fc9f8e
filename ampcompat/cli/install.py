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

from ..apex import beside
from .parsing import LineParser

FILE = "ampcompat-apex.pth"

#: ``site`` executes it once for each time that it comes by the folder, which in a virtual environment is twice.
LINE = "import sys; {0} in sys.path or sys.path.insert(0, {0})\n"


def install(arguments):
    """Write the ``.pth``; refuse where a real Apex with ``amp`` is installed."""
    parser = _parser("install", "Make `import apex` mean ampcompat's for every script of this Python environment.")
    parser.parse_args(arguments)
    other = beside.other_apex(_site_folders())
    if other and beside.has_room(other, "amp"):
        parser.error("NVIDIA Apex with amp is installed at {}; uninstall it first, or use `run`.".format(other))
    path = _path()
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(LINE.format(ascii(beside.SITE)))
    except OSError as error:
        parser.error("cannot write {}: {}.".format(path, error.strerror))
    print("`import apex` now means ampcompat's: wrote {}".format(path))
    if other:
        print(beside.about(other))
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
