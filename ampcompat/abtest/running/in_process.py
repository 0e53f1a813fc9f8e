"""Trains at each level and records it. A level that fails is a row of the report, not an exception."""

import functools
from dataclasses import replace

from ... import opt_levels
from ...engine.session import process_state
from ...errors import AmpError, AmpTypeError, AmpValueError
from ...support.patching import PatchStack
from ..judging import advice
from ..planned_run import PlannedRun
from ..recording.forced_run import RunOptions, device_name, environment, recorded_at, run_to_end
from ..recording.recorder import Recorder
from ..recording.runs_in_progress import keeping
from ..report_data import Report, planned_runs
from . import seeding
from .recorded_runs import Recorded, add_recorded, ends_series

LEVELS = ("O0", "O1", "O2", "O3")


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
):
    """Train once per opt level, with the same seeds, and report how the levels differ.

    Args:
        train: called as ``train(level)``; creates its model and data, calls ``amp.initialize`` and trains. The level
            overrides the ``opt_level`` that it passes.
        levels: the levels to run, in this order.
        baseline: the level that the others are compared with; run first if it is not in ``levels``.
        steps: end each run after this many optimizer steps; None lets it end by itself.
        repeats: runs per level, each with a different seed.
        control: train the baseline with a second seed if ``repeats`` is 1. Without it, no level is judged.
        seed: seeds Python, NumPy (if it is imported) and torch before each run.
        backend: the cast backend at O1 and O4: "auto", "native" or "patched".
        dtypes: a string such as "float32,float64" to replace the levels' own dtypes.
        verbosity: of amp's messages.
        diagnose: explain skipped steps, which slows small networks down.
        memory: measure memory in a few steps of each run, which slows these steps down.

    Returns:
        A ``Report``. A level that raised an error is in it with ``status`` "failed". The state of the random
        generators, torch's determinism flags and everything that amp changes are restored.

    Raises:
        AmpError: a session is open already, an unknown level, steps or repeats below 1.
    """
    if not callable(train):
        raise AmpTypeError(f"compare expected a function train(level), not {type(train).__name__}.")
    levels = [levels] if isinstance(levels, str) else list(levels)
    for level in levels + [baseline]:
        opt_levels.level_named(level)
    _check_count("repeats", repeats)
    _check_count("steps", 1 if steps is None else steps)
    options = {"backend": backend, "dtypes": dtypes, "verbosity": verbosity, "diagnose": diagnose, "memory": memory}
    RunOptions(**options)  # which checks them
    known = {"dtypes": dtypes, "seed": seed, "diagnose": diagnose}
    report = Report({name: value for name, value in known.items() if value is not None}, baseline)
    common = PlannedRun("", [], seed=seed, steps=steps, options=options)
    runs = planned_runs(levels, baseline, repeats, control)
    rows = list(dict.fromkeys(level for level, _ in runs))
    for level, repeat in runs:
        planned = replace(common, level=level, repeat=repeat, opt_level=level)
        recorded = run_function(train, planned, report.checkpoints())
        add_recorded(report, rows, planned, recorded)
        if ends_series(report, planned, recorded.run):
            break
    advice.advise(report)
    return report


def run_function(train, planned, checkpoints=()):
    """Do a ``PlannedRun`` of a function, and return what it ``Recorded``.

    ``checkpoints``: those of the series' other runs, as ``Report.checkpoints`` returns them.
    """
    with seeding.restored():
        if process_state.current() is not None:
            raise AmpError("A session is open already. Call compare outside its block, or ampcompat.reset() before.")
        recorder, options = Recorder(planned.steps), RunOptions(**planned.options)
        seeding.seed_all(planned.seed, planned.repeat)
        with PatchStack() as patches:
            seeding.shift_seeds(planned.repeat, patches)
            recorded = recorded_at(planned.opt_level, recorder, options, checkpoints)
            with keeping(planned.since) as put_back, recorded:
                end = run_to_end(recorder, functools.partial(train, planned.level))
                recorder.record(end)
    if end["end"] == "interrupted":
        raise KeyboardInterrupt
    return Recorded(recorder.run, dict(environment(), device=device_name(recorder.device)), put_back=put_back)


def _check_count(name, value):
    if not (isinstance(value, int) and value >= 1):
        raise AmpValueError(f"{name} must be a whole number from 1 up, not {value!r}.")
