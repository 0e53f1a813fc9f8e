"""Trains at each level in this process and records it. A level that fails is a row of the report, not an exception."""

import contextlib
import functools
import os
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ... import opt_levels
from ...engine.session import process_state
from ...errors import AmpError, AmpTypeError, AmpValueError
from ...support.patching import PatchStack
from ..judging import advice
from ..planned_run import PlannedRun
from ..recording import kept_files
from ..recording.forced_run import RunOptions, device_name, environment, recorded_at, run_to_end
from ..recording.recorder import Recorder
from ..report_data import Report, planned_runs
from . import executors, seeding

LEVELS = ("O0", "O1", "O2", "O3")

#: Sessions belong to a process, so its threads train one after another.
_one_at_a_time = threading.Lock()


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
    executor=None,
):
    """Train once per opt level, with the same seeds, and report how the levels differ.

    Args:
        train: called as ``train(level)``; creates its model and data, calls ``amp.initialize`` and trains. The level
            overrides the ``opt_level`` that it passes. Or a script and its arguments, such as ``["train.py", "--lr",
            "0.1"]``, which is run in processes, as by ``ampcompat ab``.
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
        on_event: called as ``on_event(level, repeat, event)`` with every event (``recording.event_log``), or None;
            only without an executor.
        executor: does the runs concurrently: a ``concurrent.futures.Executor``, ``Client.get_executor()`` of Dask, an
            executor of submitit, or any other object with such a ``submit`` method. A function must be picklable by it.

    Returns:
        A ``Report``. A level that raised an error is in it with ``status`` "failed". The state of the random
        generators, torch's determinism flags and everything that amp changes are restored.

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
    if executor is None and not isinstance(train, (list, tuple)):
        run_levels(report, train, runs, steps, seed, options, on_event)
        return report
    if on_event is not None:
        raise AmpValueError("on_event is only called for functions trained in this process: leave out executor.")
    given = {"backend": backend, "dtypes": dtypes, "verbosity": verbosity, "diagnose": diagnose, "memory": memory}
    _submit_all(report, train, runs, steps, seed, given, executor)
    return report


def _submit_all(report, train, runs, steps, seed, options, executor):
    """Add every run to ``report``, done by an executor; without one, the runs of a script are done one by one."""
    command = [] if callable(train) else [str(each) for each in train]
    report.environment.update(seed=seed, diagnose=options["diagnose"])
    report.environment.update({"script": " ".join(map(shlex.quote, command))} if command else {})
    common = PlannedRun("", command, seed=seed, steps=steps, options=options, folder=os.getcwd() if command else None)
    planned = [replace(common, level=level, repeat=repeat, opt_level=level) for level, repeat in runs]
    function = executors.run_process if command else functools.partial(run_function, train)
    rows = list(dict.fromkeys(level for level, _ in runs))
    with contextlib.ExitStack() as stack:
        pool = executor or stack.enter_context(ThreadPoolExecutor(1))

        def on_end(each, recorded):
            executors.add_recorded(report, rows, each, recorded)
            return not executors.ends_series(report, each, recorded.run)

        executors.run_all(pool, planned, function, on_end, limit=None if executor else 1)
    advice.advise(report)


def run_function(train, planned):
    """Do a ``PlannedRun`` of a function in this process, after those of other threads, and return the result."""
    with _one_at_a_time:
        recorder = Recorder(planned.steps)
        _check(train, planned.steps)
        with seeding.restored():
            _train(
                recorder,
                train,
                planned.level,
                planned.repeat,
                planned.seed,
                RunOptions(**planned.options),
                planned.since,
            )
    return executors.Recorded(recorder.run, dict(environment(), device=device_name(recorder.device)), "")


def run_levels(report, train, runs, steps, seed, options, on_event=None):
    """Add every run to ``report``, as ``compare`` does; on ``KeyboardInterrupt`` it keeps those that were recorded.

    The series ends after a first run in which there was nothing to record, or a baseline that failed.

    Args:
        runs: as ``planned_runs`` returns them.
    """
    _check(train, steps)
    report.environment.update(environment(), seed=seed, diagnose=options.diagnose)
    report.environment.update({"dtypes": options.overrides["dtypes"]} if "dtypes" in options.overrides else {})
    since = time.time()
    try:
        for level, repeat in runs:
            recorder = Recorder(steps, _bound(on_event, level, repeat))
            report.add(level, repeat, recorder.run)
            with seeding.restored():
                _train(recorder, train, level, repeat, seed, options, since, report.checkpoints())
            if recorder.device is not None:
                report.environment["device"] = device_name(recorder.device)
            if executors.ends_series(report, PlannedRun(level, [], repeat), recorder.run):
                break
    finally:
        advice.advise(report)


def _check(train, steps):
    if process_state.current() is not None:
        raise AmpError("A session is open already. Call compare outside its block, or call ampcompat.reset() before.")
    if not callable(train):
        raise AmpTypeError(f"compare expected a function train(level), not {type(train).__name__}.")
    if steps is not None:
        _check_count("steps", steps)


def _check_count(name, value):
    if not (isinstance(value, int) and value >= 1):
        raise AmpValueError(f"{name} must be a whole number from 1 up, not {value!r}.")


def _bound(on_event, level, repeat):
    return None if on_event is None else lambda event: on_event(level, repeat, event)


def _train(recorder, train, level, repeat, seed, options, since, checkpoints=()):
    seeding.seed_all(seed, repeat)
    with PatchStack() as patches:
        seeding.shift_seeds(repeat, patches)
        with kept_files.keeping(since) as put_back, recorded_at(level, recorder, options, checkpoints):
            end = run_to_end(recorder, lambda: train(level))
            recorder.record(end)
    checkpoints = recorder.run.checkpoints
    checkpoints[:] = [path for path in checkpoints if os.path.realpath(path) not in put_back]
    if end["end"] == "interrupted":
        raise KeyboardInterrupt
