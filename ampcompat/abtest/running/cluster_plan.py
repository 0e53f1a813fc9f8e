"""A series as a folder, with ``plan.json`` and a command for each run, which writes one record; merges records.

``ampcompat planned FOLDER NAME`` does one run, and writes ``FOLDER/NAME.json``.
"""

import json
import os
import shlex
import sys
from dataclasses import asdict, replace

from ...errors import AmpError
from ...support import files
from ..judging import advice
from ..planned_run import PlannedRun, check_identity
from ..report_data import NOT_RUN, Report, label_of
from .recorded_runs import add_recorded, recorded_by
from .subprocess_supervisor import SubprocessRun

PLAN, COMMANDS = "plan.json", "commands.txt"

#: What reports that are merged must have in common.
COMMON = ("script", "seed", "dtypes", "cuda_redirected_to")


def write_plan(folder, report, planned):
    """Write the planned runs to a folder, which is created if it does not exist; ``report`` has no runs yet.

    Raises:
        AmpError: a file cannot be written, or the name of a folder has a line break, so that no line is one command.
    """
    here = os.getcwd()
    start = "cd {} && {} -m ampcompat planned {} ".format(
        *map(shlex.quote, (here, sys.executable, os.path.abspath(folder)))
    )
    lines = [start + shlex.quote(each.file_name[: -len(".json")]) for each in planned]
    if any(line.splitlines() != [line] for line in lines):
        raise AmpError(f"--plan writes one command per line, but {start!r} has line breaks; use folders without them.")
    os.makedirs(folder, exist_ok=True)
    runs = [{"run": asdict(replace(each, folder=here)), "identity": each.identity()} for each in planned]
    tree = {"environment": report.environment, "baseline": report.baseline, "runs": runs}
    files.write(os.path.join(folder, PLAN), json.dumps(tree, indent=1))
    files.write(os.path.join(folder, COMMANDS), "".join(line + "\n" for line in lines))


def _read_plan(folder):
    """Return the report without runs, and ``[(PlannedRun, identity), …]``."""
    path = os.path.join(folder, PLAN)
    try:
        tree = json.loads(files.read(path, 1 << 40).decode("utf-8"))
        runs = [(PlannedRun(**each["run"]), each["identity"]) for each in tree["runs"]]
        return Report(environment=dict(tree["environment"]), baseline=str(tree["baseline"])), runs
    except AmpError as error:
        raise AmpError(f"{error} Expected a folder of `ampcompat ab --plan`.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise AmpError(f"{path} is damaged ({error!r}): write it again with `ampcompat ab --plan`.") from None


def run_planned(folder, name):
    """Do one run of a plan, and write its record, a report with this run only."""
    report, runs = _read_plan(folder)
    found = [planned for planned, _ in runs if planned.file_name == name + ".json"]
    if not found:
        raise AmpError(f"{os.path.join(folder, PLAN)} plans no run {name!r}.")
    child = SubprocessRun(found[0])
    child.run_to_end(lambda event: None)
    add_recorded(report, [], found[0], recorded_by(child))
    report.save(os.path.join(folder, found[0].file_name))
    return report.run_of(found[0].level, found[0].repeat)


def collect(folder):
    """Return the report of all records in a folder, and the names of the runs that have none yet."""
    report, runs = _read_plan(folder)
    paths = [os.path.join(folder, planned.file_name) for planned, _ in runs]
    missing = [planned.label for (planned, _), path in zip(runs, paths) if not os.path.exists(path)]
    records = [(path, Report.load(path, 1 << 40)) for path in paths if os.path.exists(path)]
    for planned, identity in runs:
        found = dict(records).get(os.path.join(folder, planned.file_name))
        if found is not None:
            recorded = found.run_of(planned.level, planned.repeat).identity
            check_identity([(planned.label, recorded, identity)], os.path.join(folder, planned.file_name))
    return merge([("the plan", report)] + records, [planned.level for planned, _ in runs])[0], missing


def merge(reports, order=()):
    """Merge reports of one series.

    Args:
        reports: ``[(name, Report), …]``; their runs are used, not copied.
        order: the order of the rows; those that are not in it follow.

    Returns:
        The report, and the names of missing repeats: those that no report has although one has a later repeat.

    Raises:
        AmpError: they differ in script, seed or baseline, or two of them have the same run.
    """
    (first, base), whole, owners = reports[0], Report(baseline=reports[0][1].baseline), {}
    for name, report in reports:
        for key in COMMON:
            if report.environment.get(key) != base.environment.get(key):
                values = first, key, base.environment.get(key), name, report.environment.get(key)
                raise AmpError("These reports are not of one series: {} has {} {!r}, {} has {!r}.".format(*values))
        if report.baseline != base.baseline:
            raise AmpError(f"{first} has the baseline {base.baseline}, {name} has {report.baseline}.")
        if report.baseline in report.runs or not whole.environment:
            whole.environment.update(report.environment)
        for level, repeat, run in list(report.every_run()):
            if run.error == NOT_RUN:
                continue
            label = label_of(level, repeat)
            other = owners.setdefault(label, name)
            if other != name:
                raise AmpError(f"{other} and {name} both have the run {label}.")
            run.repeats = []
            whole.add(level, repeat, run)
    rows = sorted(whole.runs, key=lambda level: list(order).index(level) if level in order else len(order))
    whole.runs = {level: whole.runs[level] for level in rows}
    advice.advise(whole)
    return whole, [label_of(level, repeat) for level, repeat, run in whole.every_run() if run.error == NOT_RUN]
