"""Train at each level in this process, and record it.

Owns: ``compare``; what surrounds one recorded run: its level and its listeners, and what is said of its end.
Must not touch: the terminal, files.
The surprise: a level is forced as the command line does it, by the environment, so that what ``train`` asks for
does not count and worker processes agree. A failure is a row of the report, not an exception.
"""

import contextlib
import platform
import traceback

import torch

from .. import __version__
from ..errors import AmpError, AmpTypeError, AmpValueError
from ..parts import half_math
from ..parts.patching import PatchStack
from ..runtime import state
from ..tables import opt_levels, torch_facts
from . import advisor, seeding
from .companions import listeners
from .recorder import EnoughSteps, Recorder
from .records import Report

LEVELS = ("O0", "O1", "O2", "O3")

NEVER_INITIALIZED = (
    "amp.initialize was never called in this process: there was nothing to record. Training in processes that the "
    "script starts by itself is not seen"
)
DISABLED = "amp.initialize was called with enabled=False, so that every level is the same plain training"
NO_STEP = "it ended before the first optimizer.step() after an amp.scale_loss"


def compare(
    train,
    levels=LEVELS,
    baseline="O0",
    steps=None,
    repeats=1,
    seed=0,
    backend=None,
    dtypes=None,
    verbosity=0,
    diagnose=True,
    memory=True,
    tell=None,
):
    """Train once per opt level, with the same seeds, and report how the levels differ.

    Args:
        train: called as ``train(level)``: makes its model and data anew, calls ``amp.initialize`` and trains. The
            level is in force whatever opt_level it asks for.
        levels: the levels to try, in this order.
        baseline: the level that the others are compared with; put in front where it is missing.
        steps: end each run after so many optimizer steps; None lets it end by itself.
        repeats: trainings per level, each with other seeds; from 2 on the baseline's own noise is measured.
        seed: of Python, NumPy (where loaded) and torch before each training.
        backend: who casts at O1 and O4: "auto", "native" or "patched".
        dtypes: a text such as "float32,float64" instead of the levels' own dtypes.
        verbosity: of amp's notices.
        diagnose: explain skipped steps, which slows small networks down.
        memory: measure it in a few steps of each run, which slows these down.
        tell: called as ``tell(level, repeat, event)`` with every event of ``abtest.journal``, or None.

    Returns:
        A ``Report``. A level that raised is in it with ``status`` "failed". The state of the random generators,
        torch's switches for reproducible results and all that amp changes are as they were before.

    Raises:
        AmpError: a session is open already, an unknown level, steps or repeats below 1.
    """
    report = Report(baseline=baseline)
    measure(report, train, levels, steps, repeats, seed, Wishes(backend, dtypes, verbosity, diagnose, memory), tell)
    return report


class Wishes:
    """How every level is run: the options of ``ampcompat run``, and what else is watched."""

    def __init__(self, backend=None, dtypes=None, verbosity=None, diagnoses=True, measures_memory=True, frames=()):
        opt_levels.parse_dtypes(dtypes)
        self.watched = (diagnoses, measures_memory)
        self.frames = tuple(frames) + (__file__,)  # of files that a traceback need not begin with
        stated = {"backend": backend, "dtypes": dtypes, "verbosity": verbosity}
        self.stated = {name: value for name, value in stated.items() if value is not None}


def measure(report, train, levels, steps, repeats, seed, wishes, tell=None):
    """Fill ``report`` run by run, as ``compare`` does; what is there when ``KeyboardInterrupt`` comes stays there."""
    _check(train, steps, repeats)
    ordered = with_baseline(levels, report.baseline)
    for level in ordered:
        opt_levels.level_named(level)
    report.environment.update(surroundings(), seed=seed, diagnose=wishes.watched[0])
    report.environment.update({"dtypes": wishes.stated["dtypes"]} if "dtypes" in wishes.stated else {})
    try:
        for level in ordered:
            for repeat in range(repeats):
                recorder = Recorder(steps, _listener(tell, level, repeat))
                report.keep(level, repeat, recorder.run)
                with seeding.restored():
                    _train(recorder, train, level, repeat, seed, wishes)
                if recorder.device is not None:
                    report.environment["device"] = device_name(recorder.device)
    finally:
        advisor.judge(report)


def with_baseline(levels, baseline):
    """Return the levels as a list, with the baseline among them."""
    levels = [levels] if isinstance(levels, str) else list(levels)
    return levels if baseline in levels else [baseline] + levels


def _check(train, steps, repeats):
    if state.current() is not None:
        raise AmpError("A session is open already. Leave its block, or call ampcompat.reset(), and compare then.")
    if not callable(train):
        raise AmpTypeError("compare expects train(level), a function, not {}.".format(type(train).__name__))
    for name, value in (("steps", steps), ("repeats", repeats)):
        if not (value is None and name == "steps") and not (isinstance(value, int) and value >= 1):
            raise AmpValueError("{} must be a whole number from 1 up, not {!r}.".format(name, value))


def _listener(tell, level, repeat):
    return None if tell is None else lambda event: tell(level, repeat, event)


def _train(recorder, train, level, repeat, seed, wishes):
    seeding.seed_all(seed, repeat)
    with PatchStack() as patches:
        seeding.shift_seeds(repeat, patches)
        with listening(listeners(recorder, *wishes.watched), level, wishes):
            end = outcome(recorder, lambda: train(level), wishes.frames)
            recorder.tell(end)
    if end["end"] == "interrupted":
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening(observers, level, wishes):
    """Force a level and let every session of the block have these observers; close the sessions afterwards."""
    before = state.command_line()
    forced = dict(wishes.stated, opt_level=level)
    state.set_command_line(**forced)
    state.observers.extend(observers)
    try:
        yield
    finally:
        while state.sessions:
            state.sessions[-1].close()
        for observer in observers:
            state.observers.remove(observer)
        state.set_command_line(**{name: before.get(name) for name in forced})


def outcome(recorder, function, skip_frames):
    """Call a training function and return the event of its end, whatever it raises.

    Args:
        recorder: its ``Recorder``.
        skip_frames: names of files whose frames a traceback need not begin with.
    """
    try:
        function()
        end = None
    except EnoughSteps:
        end = None
    except KeyboardInterrupt:
        end = {"end": "interrupted", "error": "interrupted"}
    except SystemExit as leave:
        end = {"end": "failed", "error": _exit_sentence(leave.code)} if leave.code not in (None, 0) else None
    except Exception as error:
        end = failure(error, skip_frames)
    recorder.finish()
    if recorder.is_full and (end is None or end["end"] == "failed"):  # what a script does about the stop is no failure
        return {"end": "stopped"}
    lack = _lack(recorder)
    return end or ({"end": "failed", "error": lack} if lack else {"end": "ok"})


def _exit_sentence(code):
    return "it left with exit code {}".format(code) if isinstance(code, int) else str(code).strip() or "it left"


def failure(error, skip_frames):
    """Return the event of a run that raised: its error in one line, and the whole traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in skip_frames:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    message = (str(error).strip().splitlines() or [""])[0]
    name = type(error).__name__
    return {"end": "failed", "error": "{}: {}".format(name, message) if message else name, "traceback": "".join(lines)}


def _lack(recorder):
    """Say what a run that ended by itself lacks to be compared, or return None."""
    if not recorder.is_initialized:
        return DISABLED if any(not session.enabled for session in state.sessions) else NEVER_INITIALIZED
    return None if recorder.run.step_seconds else NO_STEP


def surroundings():
    """Return what a report says of the environment."""
    return {
        "ampcompat": __version__,
        "torch": torch_facts.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def device_name(device):
    """Return the device that losses were on, in words; None where there was no loss."""
    if device is None:
        return None
    if device.type == "cuda":
        return "cuda ({})".format(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    emulated = ", half computed in float32" if half_math.is_wanted(torch.float16) else ""
    return "cpu (threads: {}{})".format(torch.get_num_threads(), emulated)
