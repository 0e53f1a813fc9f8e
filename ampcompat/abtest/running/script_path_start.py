"""Starts a module with the module search path of ``python script.py``. Python runs this file itself.

The module is ``subprocess_child``, or the one given in the task. Its ``main`` gets the arguments, the first of which is
the task, JSON with the script's ``command``.

``python -m`` would put the current folder first, where a file may hide a module that torch imports.
"""

import faulthandler
import functools
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time

#: Seconds between two looks at the parent, and those that the script gets to end after an interrupt.
POLL_INTERVAL, INTERRUPT_WAIT = 0.2, 1.3


def main(arguments):
    """Call the ``main`` of the module."""
    task = json.loads(arguments[0])
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = _first_entry(task["command"])
    kept_files = importlib.import_module("ampcompat.abtest.recording.kept_files")
    if task["parent"] is not None:
        clean_up = functools.partial(_clean_up, task["since"], os.path.dirname(task["event_log"]))
        threading.Thread(target=_end_after, args=(task["parent"], clean_up), daemon=True).start()
    patches = importlib.import_module("ampcompat.support.patching").PatchStack()
    kept_files.watch(task["kept"], task["since"], patches)  # the parent puts these files back
    return importlib.import_module(task["module"] or "ampcompat.abtest.running.subprocess_child").main(arguments)


def _end_after(parent, clean_up):
    """End this process soon after the process ``parent``, however the script spends its time.

    So a series that is killed (SIGKILL) leaves neither a training that goes on, nor a temporary folder. Code that keeps
    Python's lock for long delays it. On Windows a process keeps its parent's id, so nothing is done.
    """
    while os.getppid() == parent:
        time.sleep(POLL_INTERVAL)
    clean_up()
    # Not a thread of Python, which no longer runs while the interpreter ends; the traceback that it prints is dropped.
    faulthandler.dump_traceback_later(INTERRUPT_WAIT, exit=True, file=os.open(os.devnull, os.O_WRONLY))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def _clean_up(since, folder):
    """Do what the parent can no longer do: put files back, and remove the run's temporary folder."""
    progress = importlib.import_module("ampcompat.abtest.recording.runs_in_progress")
    progress.RunInProgress(since).put_back_after_killed_runs()
    shutil.rmtree(folder, ignore_errors=True)


def _first_entry(command):
    """Return the path that Python puts first for ``[script, …]`` or ``["-m", module, …]``."""
    if command[0] == "-m":
        return os.getcwd()
    path = os.path.realpath(command[0])
    return os.path.dirname(path) if os.path.isfile(path) else path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
