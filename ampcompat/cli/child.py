"""What runs in the process of one level: seeds, listeners, then the script as ``__main__``.

Owns: the handing over to a script within this process, and what the parent is told of its end.
Must not touch: the terminal; the parent has put stdout and stderr where it wants them.
The surprise: unlike ``run`` this does not become ``python script.py``, since somebody must be there when the script
has taken enough steps or has failed. The script still has its own ``sys.argv``, ``sys.path[0]`` and ``__main__``.
"""

import importlib.util
import json
import os
import runpy
import signal
import sys

from ..abtest import comparison, seeding
from ..abtest.companions import listeners
from ..abtest.journal import Writer
from ..abtest.recorder import Recorder
from ..apex.install import SITE
from ..parts.patching import PatchStack

#: The exit codes of a run by its end.
EXIT_CODES = {"ok": 0, "stopped": 0, "failed": 1, "interrupted": 130}

#: Frames above the script's own in a traceback.
FRAMES = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


def main(arguments):
    """Run the script of ``fresh.Start`` (as JSON in the first argument) and return the exit code."""
    start = json.loads(arguments[0])
    recorder = Recorder(start["steps"], _writer(start))
    recorder.tell({"environment": comparison.surroundings()})
    if importlib.util.find_spec("numpy"):
        import numpy  # noqa: F401  before its generator is seeded
    seeding.seed_all(start["seed"], start["repeat"])
    wished = [start[name] for name in ("backend", "dtypes", "verbosity", "diagnoses", "measures_memory")]
    wishes = comparison.Wishes(*wished, frames=FRAMES)
    with PatchStack() as patches, comparison.listening(listeners(recorder, *wishes.watched), start["level"], wishes):
        seeding.shift_seeds(start["repeat"], patches)
        end = comparison.outcome(recorder, lambda: run_target(start["target"]), wishes.frames)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cost what the first has left
        recorder.tell({"environment": {"device": comparison.device_name(recorder.device)}})
        recorder.tell(end)
        _print_failure(end)
    return EXIT_CODES[end["end"]]


def _writer(start):
    # Of the ranks that a launcher starts each one stops after so many steps, and the first one tells.
    return Writer(start["journal"]).write if os.environ.get("RANK", "0") == "0" else None


def _print_failure(end):
    if end["end"] == "failed":
        print(end.get("traceback") or "", end="", file=sys.stderr, flush=True)


def run_target(target):
    """Run ``[script, arguments …]`` or ``["-m", module, arguments …]`` as ``__main__``; put back what that changes."""
    path, argv = list(sys.path), list(sys.argv)
    try:
        if target[0] == "-m":
            sys.path[:], sys.argv[:] = _path([os.getcwd()]), target[1:]
            runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        else:
            # A folder or a zip file comes first by runpy's own doing.
            beside = [os.path.dirname(os.path.realpath(target[0]))] if os.path.isfile(target[0]) else []
            sys.path[:], sys.argv[:] = _path(beside), list(target)
            runpy.run_path(target[0], run_name="__main__")
    finally:
        sys.path[:], sys.argv[:] = path, argv


def _path(first):
    """Return the search path of a script: what comes first, our ``apex``, and the rest without our own first entry."""
    rest = [entry for entry in sys.path if entry != SITE]
    own = 0 if getattr(sys.flags, "safe_path", False) else 1
    return first + [SITE] + rest[own:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
