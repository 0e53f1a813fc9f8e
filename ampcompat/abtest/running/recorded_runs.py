"""What a run has recorded when it has ended, its place in the report, and whether the series goes on."""

import os
from typing import Dict, NamedTuple, Sequence

from ..report_data import NOTHING_TO_RECORD, Run


class Recorded(NamedTuple):
    """The results of a run that has ended: the run, its versions and device, the end of its output, and the files that
    the series had overwritten and that were put back, since no other run was in progress. A ``SubprocessRun`` has the
    same attributes.
    """

    run: Run
    environment: Dict[str, object]
    output: str = ""
    put_back: Sequence[str] = ()


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
