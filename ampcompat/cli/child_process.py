"""Runs one level of ``ab`` in a child process: seeds, records, and runs the script as ``__main__``.

Unlike ``run`` this cannot ``exec`` the script, since the run is recorded and may be stopped after a number of steps.
The script still has its own ``sys.argv``, ``sys.path[0]`` and ``__main__``.
"""

import importlib.util
import json
import os
import runpy
import signal
import sys

from ..abtest import comparison, seeding
from ..abtest.event_log import EventWriter
from ..abtest.record import Recorder
from ..apex.install import SITE
from ..patching import PatchStack

#: Exit codes by the status of a run.
EXIT_CODES = {"ok": 0, "stopped": 0, "failed": 1, "interrupted": 130}

#: Files whose frames come before the script's own in a traceback.
HIDDEN_FILES = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


def main(arguments):
    """Run the script of a ``subprocess_run.ChildTask`` (as JSON in the first argument) and return the exit code."""
    task = json.loads(arguments[0])
    recorder = Recorder(task["steps"], _event_writer(task))
    recorder.record({"environment": comparison.environment()})
    if importlib.util.find_spec("numpy"):
        import numpy  # noqa: F401  so that its generator is seeded
    seeding.seed_all(task["seed"], task["repeat"])
    options = comparison.RunOptions(hidden_files=HIDDEN_FILES, **task["options"])
    with PatchStack() as patches, comparison.recorded_at(task["level"], recorder, options):
        seeding.shift_seeds(task["repeat"], patches)
        end = comparison.run_to_end(recorder, lambda: run_script(task["command"]), options.hidden_files)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt writing the last events
        recorder.record({"environment": {"device": comparison.device_name(recorder.device)}})
        recorder.record(end)
        if end["end"] == "failed":
            print(end.get("traceback") or "", end="", file=sys.stderr, flush=True)
    return EXIT_CODES[end["end"]]


def _event_writer(task):
    # Of the ranks that a launcher starts each one stops after so many steps, and rank 0 writes events.
    return EventWriter(task["event_log"]).write if os.environ.get("RANK", "0") == "0" else None


def run_script(command):
    """Run ``[script, arguments …]`` or ``["-m", module, arguments …]`` as ``__main__``, and restore ``sys``."""
    path, argv = list(sys.path), list(sys.argv)
    try:
        if command[0] == "-m":
            sys.path[:], sys.argv[:] = _search_path([os.getcwd()]), command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            # For a folder or a zip file runpy inserts the first entry itself.
            first = [os.path.dirname(os.path.realpath(command[0]))] if os.path.isfile(command[0]) else []
            sys.path[:], sys.argv[:] = _search_path(first), list(command)
            runpy.run_path(command[0], run_name="__main__")
    finally:
        sys.path[:], sys.argv[:] = path, argv


def _search_path(first):
    """Return ``sys.path`` for a script: its own first entries, our ``apex``, and the rest without our first entry."""
    rest = [entry for entry in sys.path if entry != SITE]
    own = 0 if getattr(sys.flags, "safe_path", False) else 1
    return first + [SITE] + rest[own:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
