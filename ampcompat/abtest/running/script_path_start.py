"""Starts a module with the module search path of ``python script.py``. Python runs this file itself.

The module is ``subprocess_child``, or the one given in the task. Its ``main`` gets the arguments, the first of which is
the task, JSON with the script's ``command``.

``python -m`` would put the current folder first, where a file may hide a module that torch imports.
"""

import importlib
import json
import os
import sys


def main(arguments):
    """Call the ``main`` of the module."""
    task = json.loads(arguments[0])
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = _first_entry(task["command"])
    if task["parent"] is not None:
        watch = importlib.import_module("ampcompat.abtest.running.parent_watch").watch
        watch(task["parent"], os.path.dirname(task["event_log"]))
    keep_files(task["kept"], task["since"])
    return importlib.import_module(task["module"] or "ampcompat.abtest.running.subprocess_child").main(arguments)


def keep_files(manifest, since):
    """Keep the files that this process overwrites; its parent puts them back."""
    patches = importlib.import_module("ampcompat.support.patching").PatchStack()
    importlib.import_module("ampcompat.abtest.recording.kept_files").watch(manifest, since, patches)


def _first_entry(command):
    """Return the path that Python puts first for ``[script, …]`` or ``["-m", module, …]``."""
    if command[0] == "-m":
        return os.getcwd()
    path = os.path.realpath(command[0])
    return os.path.dirname(path) if os.path.isfile(path) else path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
