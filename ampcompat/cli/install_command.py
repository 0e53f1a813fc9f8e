"""``install`` and ``uninstall``: make plain ``python script.py`` import ampcompat's ``apex``.

They write and remove one file, ``ampcompat-apex.pth``, in the site-packages of the running interpreter.
"""

import os
import site
import sys
import sysconfig

from ..apex import nvidia_apex
from ..support import files
from .argument_parser import CommandParser

FILE = "ampcompat-apex.pth"

#: A path in a ``.pth`` is *appended* to ``sys.path``, but an ``import`` statement is executed and can insert the path
#: at the front. ``site`` executes it every time it reads the folder, which is twice in a virtual environment.
LINE = "import sys; {0} in sys.path or sys.path.insert(0, {0})\n"


def install(arguments):
    """Write the ``.pth``; an error if NVIDIA Apex with ``amp`` is installed."""
    told = "Make `import apex` import ampcompat in every script of this Python environment (one .pth file)."
    parser = CommandParser(prog="ampcompat install", description=told)
    parser.parse_args(arguments)
    other = nvidia_apex.other_apex(_site_folders())
    if other and nvidia_apex.has_submodule(other, "amp"):
        parser.error(f"NVIDIA Apex with amp is installed at {other}; uninstall it first, or use `run`.")
    path = _path()
    files.write(path, LINE.format(ascii(nvidia_apex.SITE)))
    print(f"`import apex` now imports ampcompat: wrote {path}")
    if other:
        print(nvidia_apex.describe(other))
    return 0


def uninstall(arguments):
    """Remove the ``.pth``."""
    parser = CommandParser(prog="ampcompat uninstall", description="Undo `ampcompat install`.")
    parser.parse_args(arguments)
    path = _path()
    if not os.path.exists(path):
        print(f"Nothing to undo: {path} does not exist")
        return 0
    try:
        os.remove(path)
    except OSError as error:
        parser.error(f"cannot remove {path}: {error.strerror}.")
    print(f"`import apex` no longer imports ampcompat: removed {path}")
    return 0


def _path():
    return os.path.join(sysconfig.get_paths()["purelib"], FILE)


def _site_folders():
    """Return the folders of installed packages in the order in which this interpreter searches them."""
    # The first entry is the folder in which the command was started; an `apex` there is not installed.
    folders = [folder for folder in sys.path[1:] if folder]
    return folders + [site.getusersitepackages()] if site.ENABLE_USER_SITE else folders
