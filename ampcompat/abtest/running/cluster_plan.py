"""A series as a folder, with ``plan.json`` and a command for each run, which writes one record.

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
from ..report_data import Report
from .recorded_runs import Recorded, add_recorded
from .subprocess_supervisor import SubprocessRun

PLAN, COMMANDS = "plan.json", "commands.txt"


def write_plan(folder, report, planned):
    """Write the planned runs to a folder, which is created if it does not exist; ``report`` has no runs yet.

    Raises:
        AmpError: a file cannot be written, or the name of a folder has a line break, so that no line is one command.
    """
    here = os.getcwd()
    start = "cd {} && {} -m ampcompat planned {} ".format(
        *map(shlex.quote, (here, sys.executable, os.path.abspath(folder)))
    )
    lines = [start + shlex.quote(each.name) for each in planned]
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
    found = [planned for planned, _ in runs if planned.name == name]
    if not found:
        raise AmpError(f"{os.path.join(folder, PLAN)} plans no run {name!r}.")
    child = SubprocessRun(found[0])
    child.run_to_end(lambda event: None)
    add_recorded(report, [], found[0], child)
    report.save(os.path.join(folder, name + ".json"))
    return report.run_of(found[0].level, found[0].repeat)


def collect(folder):
    """Return the report of all records in a folder, and the names of the runs that have none yet."""
    report, runs = _read_plan(folder)
    rows, missing = [planned.level for planned, _ in runs], []
    for planned, identity in runs:
        path = os.path.join(folder, planned.name + ".json")
        if not os.path.exists(path):
            missing.append(planned.label)
            continue
        record = Report.load(path, 1 << 40)
        run = record.run_of(planned.level, planned.repeat)
        if run is None:
            raise AmpError(f"{path} does not have the run {planned.label}: do it again.")
        check_identity([(planned.label, run.identity, identity)], path)
        run.repeats = []
        add_recorded(report, rows, planned, Recorded(run, record.environment))
    advice.advise(report)
    return report, missing
