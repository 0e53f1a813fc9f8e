"""``ab --first-difference ROW``: one step of the baseline and of a level or variant, operation by operation.

Each of the two runs in its own process, up to the step that is compared: the last of ``--steps``, or the second.
"""

import json
import linecache
import tempfile
from dataclasses import replace
from typing import Optional

from ..abtest.report_data import NOTHING_TO_RECORD, OpDifference, StepComparison
from ..abtest.running.subprocess_supervisor import SubprocessRun, run_one
from ..abtest.schema import form_of
from ..errors import AmpError
from ..support.child_environment import ChildEnvironment

#: The module that observes the step in the script's process (see ``RunOptions``).
WATCH = "ampcompat.tools.first_difference.observed_step"

#: The step that is compared without ``--steps``, counted from 1: weights have been updated, and optimizers have a
#: state.
STEP = 2

#: Bytes of tensors that each process keeps in the temporary folder.
LIMIT = 8 << 30


def compare_step(options, report, planned, progress):
    """Compare the step, and put the result into the report.

    Args:
        options: those of ``ab``, with ``first_difference``, the name of the row.
        planned: the ``PlannedRun`` of each row.

    Raises:
        AmpError: one of the runs ended before the step did; the message has its error and the end of its output.
    """
    runs = {each.level: each for each in planned if each.repeat == 0}
    reference, compared = runs[report.baseline], runs[options.first_difference]
    with tempfile.TemporaryDirectory(prefix="ampcompat-step-") as folder:
        step = (options.steps or STEP) - 1
        try:
            _record(options, reference, compared, "reference", folder, step, progress, report)
        except _TooShort:
            if options.steps is not None:
                raise
            step = 0
            _record(options, reference, compared, "reference", folder, step, progress, report)
        found = _record(options, compared, compared, "compared", folder, step, progress, report)
    for each in [found["first"], found["parted"]] + found["largest"]:
        if each is not None:
            each["source"] = _source(each["line"])
    report.first_difference = form_of(Optional[OpDifference]).read(found["first"])
    compared_rows = dict(found, baseline=reference.level, row=compared.level, step=step)
    report.step_comparison = form_of(StepComparison).read(compared_rows)


class _TooShort(AmpError):
    """The script ended before the step."""


def _source(line):
    path, _, number = line.rpartition(":")
    return linecache.getline(path, int(number)).strip()[:200] if number.isdigit() else ""


def _record(options, planned, compared, role, folder, step, progress, report):
    """Run the script up to the step, and return the result of its observer."""
    task = {"role": role, "folder": folder, "step": step, "level": compared.opt_level, "limit": LIMIT}
    task["initialize"] = compared.options.get("initialize") or {}
    quiet = {"watch": WATCH, "losses_by_line": True, "diagnose": False, "memory": False, "layers": False}
    told = ChildEnvironment(is_uncompiled=True, first_difference=json.dumps(task)).to_env()
    environment = dict(planned.environment, **told)
    run = replace(planned, steps=step + 1, options=dict(planned.options, **quiet), environment=environment)
    child = SubprocessRun(run, options.verbose, name="first-difference-" + role)
    found = []
    keep = lambda event: found.extend([event["first_difference"]] if "first_difference" in event else [])  # noqa: E731
    run_one(child, f"{planned.level}, step {step + 1}", progress, keep)
    report.environment.update({name: value for name, value in child.environment.items() if value is not None})
    if found:
        return found[0]
    raise _failure(planned.level, child, step)


def _failure(level, child, step):
    """Return the error of a run that ended before the step did."""
    steps = len(child.run.step_seconds)
    told = child.run.error if child.run.status == "failed" else None
    kind = AmpError if told and told not in NOTHING_TO_RECORD else _TooShort
    told = told or "it ended after {} optimizer step{}".format(steps, "" if steps == 1 else "s")
    head = f"{level} has no step {step + 1} to compare: {told}"
    return kind("\n".join(filter(None, [child.output.strip(), head])))
