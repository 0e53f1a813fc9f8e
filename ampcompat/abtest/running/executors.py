"""Does the planned runs of a series on any executor with ``submit``: threads, processes, Dask, MPI, submitit."""

import functools
import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Dict, NamedTuple, Sequence

from ...errors import AmpError
from ..report_data import NOTHING_TO_RECORD, Run
from .subprocess_supervisor import SubprocessRun

#: Seconds between checks of runs that do not signal their end; the longest wait for others (for Ctrl-C on Windows).
POLL_INTERVAL, WAIT_AT_MOST = 0.1, 1.0


class Recorded(NamedTuple):
    """The results of a run that has ended: the run, its versions and device, the end of its output, and the files that
    the series had overwritten and that were put back, since no other run was in progress."""

    run: Run
    environment: Dict[str, object]
    output: str
    put_back: Sequence[str] = ()


def run_process(planned):
    """Do a ``PlannedRun`` of a script in a child process of this one, and return what it ``Recorded``."""
    child = SubprocessRun(planned)
    child.run_to_end(lambda event: None)
    return recorded_by(child)


def recorded_by(child):
    """Return what a ``SubprocessRun`` has recorded."""
    return Recorded(child.run, child.environment, child.output, child.put_back)


def run_all(executor, runs, function, on_end, limit=None):
    """Submit ``function(planned)`` for each planned run, and call ``on_end(planned, recorded)`` as they end.

    A run whose worker is lost (the executor raises its error) is tried once more when no other run is in progress, to
    find out which run causes it; then it counts as failed. No others are started after ``on_end`` has returned False.

    Args:
        executor: has ``submit(function, argument)``, which returns an object with ``done``, ``result`` and ``cancel``.
        limit: how many runs to submit before one of them has ended; None means all of them.
    """
    lost = []
    if _run_pass(executor, runs, function, on_end, limit, lambda planned, error: lost.append(planned)):
        again = functools.partial(_once_more, function)
        _run_pass(executor, lost, again, on_end, 1, lambda planned, error: on_end(planned, _failed(planned, error)))


def _once_more(function, planned):
    """Do a run again. A separate function, since Dask keeps the result of a function with the same arguments."""
    return function(planned)


def _run_pass(executor, runs, function, on_end, limit, on_lost):
    """Do the runs; return whether all have ended."""
    waiting, submitted = list(runs), []
    try:
        while waiting or submitted:
            while waiting and (limit is None or len(submitted) < limit):
                submitted.append((waiting[0], _submit(executor, function, waiting.pop(0))))
            ended = [each for each in submitted if each[1].done()]
            for planned, future in ended:
                submitted.remove((planned, future))
                try:
                    recorded = future.result()
                except AmpError:
                    raise
                except Exception as error:  # the executor's own error: errors of a script are recorded
                    on_lost(planned, error)
                    continue
                if on_end(planned, recorded) is False:
                    return False
            if submitted and not ended:
                _wait([future for _, future in submitted])
    finally:
        for _, future in submitted:
            future.cancel()
    return True


def _wait(submitted):
    """Wait until a future may have ended."""
    if all(isinstance(each, Future) for each in submitted):
        wait(submitted, WAIT_AT_MOST, FIRST_COMPLETED)
    else:  # submitit's jobs, which are found in files
        time.sleep(POLL_INTERVAL)


def _submit(executor, function, planned):
    try:
        return executor.submit(function, planned)
    except Exception as error:  # such as a pool whose workers are lost
        failed = Future()
        failed.set_exception(error)
        return failed


def _failed(planned, error):
    text = "its worker was lost twice: {}: {}".format(type(error).__name__, str(error).strip() or "no message")
    run = Run(status="failed", error=" ".join(text.split()), identity=planned.identity())
    return Recorded(run, {}, "")


def ends_series(report, planned, run):
    """Return whether a run leaves nothing to compare: nothing was recorded, or the baseline failed."""
    failed = run.status == "failed" and planned.level == report.baseline and planned.repeat == 0
    return failed or run.error in NOTHING_TO_RECORD


def add_recorded(report, order, planned, recorded):
    """Add a run that has ended to a report, with rows in ``order``. Versions and device are the baseline's.

    A file that was put back is no run's checkpoint.
    """
    report.add(planned.level, planned.repeat, recorded.run)
    for _, _, run in report.every_run():
        run.checkpoints = [path for path in run.checkpoints if os.path.realpath(path) not in recorded.put_back]
    if planned.level == report.baseline or "torch" not in report.environment:
        known = {name: value for name, value in recorded.environment.items() if value is not None}
        report.environment.update(known)
    rows = [level for level in order if level in report.runs]
    rows += [level for level in report.runs if level not in order]
    report.runs = {level: report.runs[level] for level in rows}
