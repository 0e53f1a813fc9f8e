"""Does one run of ``ab`` in a child process: seeds, records, and runs the script as ``__main__``.

Unlike ``run``, this cannot ``exec`` the script, since the run is recorded and may be stopped after a number of steps.
The script still has its own ``sys.argv``, ``sys.path[0]`` and ``__main__``.
"""

import functools
import importlib.util
import json
import os
import runpy
import signal
import sys

from ...launch.forced_levels.forced_level import forced
from ...support.child_environment import SITE, with_local_rank
from ...support.patching import PatchStack
from ..recording import forced_run
from ..recording.event_log import write_event
from ..recording.recorder import Recorder
from . import seeding, spawned_ranks

#: Exit codes by the status of a run.
EXIT_CODES = {"ok": 0, "stopped": 0, "failed": 1, "interrupted": 130}

#: Files whose frames come before the script's own in a traceback.
HIDDEN_FILES = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


def main(arguments):
    """Do a ``PlannedRun`` (as JSON in the first argument, with what ``SubprocessRun`` adds); return the exit code."""
    task = json.loads(arguments[0])
    # Each rank that a launcher starts stops after this number of steps, and rank 0 writes events.
    if os.environ.get("RANK", "0") != "0":
        return _record(task, Recorder(task["steps"]))
    with open(task["event_log"], "w", encoding="utf-8") as log:

        def write(event):
            write_event(log, event)
            if event.get("step") == 0:
                write_event(log, {"environment": {"device": forced_run.device_name(recorder.device)}})

        recorder = Recorder(task["steps"], write)
        return _record(task, recorder)


def _record(task, recorder):
    recorder.record({"environment": forced_run.environment()})
    if importlib.util.find_spec("numpy"):
        import numpy  # noqa: F401  so that its generator is seeded
    seeding.seed_all(task["seed"], task["repeat"])
    options = forced_run.RunOptions(**task["options"])
    recorded = forced_run.recorded_at(task["opt_level"], recorder, options, task["checkpoints"])
    with PatchStack() as patches, recorded, forced(task["opt_level"]):
        patches.set(sys, "argv", list(task["command"]))  # what is found after the script's end names it, too
        seeding.shift_seeds(task["repeat"], patches)
        end_process = functools.partial(_end_process, recorder)
        spawned_ranks.run_first_rank_here(patches, task["seed"], task["repeat"], end_process)
        script = functools.partial(run_script, task["command"], task["has_alias"])
        end = forced_run.run_to_end(recorder, script, HIDDEN_FILES)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt writing the last events
        recorder.record(end)
        if end["end"] == "failed":
            print(end.get("traceback") or "", end="", file=sys.stderr, flush=True)
    return EXIT_CODES[end["end"]]


def _end_process(recorder, error):
    """End this process after an error in a rank that the script spawned, since other threads may wait for that rank."""
    told, index = str(error).strip(), getattr(error, "error_index", None)  # none before torch 1.6 or so
    # torch numbers the processes that it started; the first is rank 1.
    shown = "{}: {}".format("a rank" if index is None else f"rank {index + 1}", told.splitlines()[-1])
    recorder.record({"end": "failed", "error": shown, "traceback": told})
    print(told, file=sys.stderr, flush=True)
    os._exit(EXIT_CODES["failed"])


def run_script(command, has_alias=True):
    """Run ``[script, arguments …]`` or ``["-m", module, arguments …]`` as ``__main__``, and restore ``sys``.

    ``has_alias``: whether ``import apex`` finds ampcompat's.
    """
    path, argv, command = list(sys.path), list(sys.argv), with_local_rank(command)
    try:
        if command[0] == "-m":
            sys.path[:], sys.argv[:] = _search_path([os.getcwd()], has_alias), command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            # For a folder or a zip file, runpy inserts the first entry itself.
            first = [os.path.dirname(os.path.realpath(command[0]))] if os.path.isfile(command[0]) else []
            sys.path[:], sys.argv[:] = _search_path(first, has_alias), list(command)
            runpy.run_path(command[0], run_name="__main__")
    finally:
        sys.path[:], sys.argv[:] = path, argv


def _search_path(first, has_alias):
    """Return ``sys.path`` for a script: its own first entries, our ``apex``, and the rest without our first entry."""
    rest = [entry for entry in sys.path if entry != SITE]
    own = 0 if getattr(sys.flags, "safe_path", False) else 1
    return first + ([SITE] if has_alias else []) + rest[own:]
