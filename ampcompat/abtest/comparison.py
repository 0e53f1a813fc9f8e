"""Trains at each level in this process and records it. A level that fails is a row of the report, not an exception."""

import contextlib
import platform
import traceback

import torch

from .. import __version__, opt_levels
from ..casting import half_emulation
from ..errors import AmpError, AmpTypeError, AmpValueError
from ..patching import PatchStack
from ..torch_compat import features
from ..training import state
from . import advice, metrics, seeding
from .event_sources import add_observers
from .record import Recorder, StepLimitReached
from .report_data import DISABLED, NEVER_INITIALIZED, NOTHING_TO_RECORD, Report, planned_runs

LEVELS = ("O0", "O1", "O2", "O3")

NO_STEP = "it ended before the first optimizer.step() after an amp.scale_loss"


def compare(
    train,
    levels=LEVELS,
    baseline="O0",
    steps=None,
    repeats=1,
    control=True,
    seed=0,
    backend=None,
    dtypes=None,
    verbosity=0,
    diagnose=True,
    memory=True,
    on_event=None,
):
    """Train once per opt level, with the same seeds, and report how the levels differ.

    Args:
        train: called as ``train(level)``: makes its model and data, calls ``amp.initialize`` and trains. The level
            overrides the opt_level that it passes.
        levels: the levels to run, in this order.
        baseline: the level that the others are compared with; run first where ``levels`` lacks it.
        steps: end each run after so many optimizer steps; None lets it end by itself.
        repeats: trainings per level, each with other seeds.
        control: train the baseline with a second seed where ``repeats`` is 1. Without, no level is judged.
        seed: seeds Python, NumPy (if it is imported) and torch before each training.
        backend: what casts at O1 and O4: "auto", "native" or "patched".
        dtypes: a string such as "float32,float64" to replace the levels' own dtypes.
        verbosity: of amp's messages.
        diagnose: explain skipped steps, which slows small networks down.
        memory: measure memory in a few steps of each run, which slows these steps down.
        on_event: called as ``on_event(level, repeat, event)`` with every event of ``abtest.event_log``, or None.

    Returns:
        A ``Report``. A level that raised is in it with ``status`` "failed". The state of the random generators,
        torch's switches for reproducible results and all that amp changes are as they were before.

    Raises:
        AmpError: a session is open already, an unknown level, steps or repeats below 1.
    """
    report = Report(baseline=baseline)
    options = RunOptions(backend, dtypes, verbosity, diagnose, memory)
    levels = [levels] if isinstance(levels, str) else list(levels)
    for level in levels + [baseline]:
        opt_levels.level_named(level)
    _check_count("repeats", repeats)
    runs = planned_runs(levels, baseline, repeats, control)
    run_levels(report, train, runs, steps, seed, options, on_event)
    return report


class RunOptions:
    """How every level is run.

    Args:
        backend, dtypes, verbosity: as for ``ampcompat run``; None keeps what the script passes to ``amp.initialize``.
        diagnose, memory: as for ``compare``.
        layers: compare each layer with float32 in a few steps.
        keep_fp32: names of layers to keep in float32, besides those that the script names.
        hidden_files: files whose frames are left out at the start of a traceback.
    """

    def __init__(
        self,
        backend=None,
        dtypes=None,
        verbosity=None,
        diagnose=True,
        memory=True,
        hidden_files=(),
        layers=False,
        keep_fp32=(),
    ):
        opt_levels.parse_dtypes(dtypes)
        self.layers, self.keep_fp32 = layers, list(keep_fp32)
        self.diagnose, self.memory = diagnose, memory
        self.hidden_files = tuple(hidden_files) + (__file__,)
        given = {"backend": backend, "dtypes": dtypes, "verbosity": verbosity}
        self.overrides = {name: value for name, value in given.items() if value is not None}


def run_levels(report, train, runs, steps, seed, options, on_event=None):
    """Add every run to ``report``, as ``compare`` does; on ``KeyboardInterrupt`` it keeps those that were recorded.

    The series ends after a first run in which there was nothing to record.

    Args:
        runs: as ``planned_runs`` returns them.
    """
    _check(train, steps)
    report.environment.update(environment(), seed=seed, diagnose=options.diagnose)
    report.environment.update({"dtypes": options.overrides["dtypes"]} if "dtypes" in options.overrides else {})
    try:
        for level, repeat in runs:
            recorder = Recorder(steps, _bound(on_event, level, repeat))
            report.add(level, repeat, recorder.run)
            with seeding.restored():
                _train(recorder, train, level, repeat, seed, options)
            if recorder.device is not None:
                report.environment["device"] = device_name(recorder.device)
            if recorder.run.error in NOTHING_TO_RECORD:
                break
    finally:
        advice.advise(report)


def _check(train, steps):
    if state.current() is not None:
        raise AmpError("A session is open already. Call compare outside its block, or call ampcompat.reset() before.")
    if not callable(train):
        raise AmpTypeError("compare expected a function train(level), not {}.".format(type(train).__name__))
    if steps is not None:
        _check_count("steps", steps)


def _check_count(name, value):
    if not (isinstance(value, int) and value >= 1):
        raise AmpValueError("{} must be a whole number from 1 up, not {!r}.".format(name, value))


def _bound(on_event, level, repeat):
    return None if on_event is None else lambda event: on_event(level, repeat, event)


def _train(recorder, train, level, repeat, seed, options):
    seeding.seed_all(seed, repeat)
    with PatchStack() as patches:
        seeding.shift_seeds(repeat, patches)
        with recorded_at(level, recorder, options):
            end = run_to_end(recorder, lambda: train(level), options.hidden_files)
            recorder.record(end)
    if end["end"] == "interrupted":
        raise KeyboardInterrupt


@contextlib.contextmanager
def recorded_at(level, recorder, options):
    """Force an opt level and record every session of the block; close the sessions afterwards.

    The level is forced by environment variables, as ``ampcompat run`` does it, so that worker processes see it too.
    """
    observers = add_observers(recorder, options.diagnose, options.memory, options.layers)
    before = state.command_line()
    forced = dict(options.overrides, opt_level=level)
    state.set_command_line(**forced)
    state.observers.extend(observers)
    try:
        with metrics.recording(recorder), PatchStack() as patches:
            patches.set(state, "keep_fp32", options.keep_fp32)
            yield
    finally:
        try:
            state.close_all()
        finally:
            for observer in observers:
                state.observers.remove(observer)
            state.set_command_line(**{name: before.get(name) for name in forced})


def run_to_end(recorder, function, hidden_files):
    """Call a training function and return the event of its end, whatever it raises.

    Args:
        recorder: its ``Recorder``.
        layers: compare each layer with float32 in a few steps.
        keep_fp32: names of layers to keep in float32, besides those that the script names.
        hidden_files: files whose frames are left out at the start of a traceback.
    """
    end = None
    try:
        function()
    except StepLimitReached:
        pass
    except KeyboardInterrupt:
        end = {"end": "interrupted", "error": "interrupted"}
    except SystemExit as error:
        end = {"end": "failed", "error": _describe_exit(error.code)} if error.code not in (None, 0) else None
    except Exception as error:
        end = _failure(error, hidden_files)
    recorder.finish()
    if recorder.is_full and (end is None or end["end"] == "failed"):  # a script may turn the stop into its own error
        return {"end": "stopped"}
    missing = _missing(recorder)
    return end or ({"end": "failed", "error": missing} if missing else {"end": "ok"})


def _describe_exit(code):
    return "it left with exit code {}".format(code) if isinstance(code, int) else str(code).strip() or "it left"


def _failure(error, hidden_files):
    """Return the event of a run that raised: its error in one line, and the whole traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden_files:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    message = (str(error).strip().splitlines() or [""])[0]
    name = type(error).__name__
    return {"end": "failed", "error": "{}: {}".format(name, message) if message else name, "traceback": "".join(lines)}


def _missing(recorder):
    """Return why a run that ended without an error cannot be compared, or None if it can."""
    if not recorder.is_initialized:
        return DISABLED if any(not session.enabled for session in state.sessions) else NEVER_INITIALIZED
    return None if recorder.run.step_seconds else NO_STEP


def environment():
    """Return the versions and the platform for a report."""
    return {
        "ampcompat": __version__,
        "torch": features.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def device_name(device):
    """Return a description of the device that the losses were on; None if there was no loss."""
    if device is None:
        return None
    if device.type == "cuda":
        return "cuda ({})".format(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    halves = (("float16", torch.float16), ("bfloat16", torch.bfloat16))
    emulated = " and ".join(name for name, dtype in halves if half_emulation.is_wanted(dtype))
    told = ", {} emulated in float32".format(emulated) if emulated else ""
    return "cpu (threads: {}{})".format(torch.get_num_threads(), told)
