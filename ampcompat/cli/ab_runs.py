"""The runs of ``ab``: which are planned, which a file already has, and how they are done."""

import functools
import os
import shlex
import subprocess
import sys
from dataclasses import replace

from ..abtest.judging.summary import emulates_half
from ..abtest.planned_run import PlannedRun, check_identity
from ..abtest.report_data import Report, Run, planned_runs
from ..abtest.row_names import UNCHANGED
from ..abtest.running.recorded_runs import add_recorded, ends_series
from ..abtest.running.subprocess_supervisor import SubprocessRun, run_one
from ..errors import AmpError

#: The statuses of runs that are not done again.
FINISHED = ("ok", "stopped")

#: Rounds of short runs if their number is not given, and if a run trains for less time than it takes to start.
ROUNDS, FEW_ROUNDS = 3, 2


def plan_series(options):
    """Return the ``PlannedRun`` of each run, given the options of ``ab`` that ``checked_command`` has checked."""
    runs = planned_runs(list(options.rows), options.baseline, options.repeats, options.control)
    return [_planned(options, level, repeat) for level, repeat in runs]


def _planned(options, level, repeat):
    changes, command = dict(options.rows[level]), options.command
    script = changes.pop("script", None)
    # The report has what amp prints; if a script fails, its own output and traceback are shown.
    run_options = {"verbosity": None if options.verbose else 0}
    run_options.update({name: getattr(options, name) for name in ("backend", "dtypes", "diagnose", "memory")})
    run_options.update(changes.pop("options", {}))
    if options.baseline == UNCHANGED or any("script" in each for each in options.rows.values()):
        run_options["losses_by_line"] = True
    rest = command[2:] if command[0] == "-m" else command[1:]
    common = PlannedRun(
        level=level,
        command=[script] + rest if script else command,
        repeat=repeat,
        options=run_options,
        **{name: getattr(options, name) for name in ("seed", "steps", "launcher", "device", "timeout", "since")},
    )
    return replace(common, **changes)


def begin_or_resume(options, planned):
    """Return the report to add to, and the planned runs that it does not have yet.

    Raises:
        AmpError: the file of ``--resume`` cannot be read, or has runs that differ from those of this command.
    """
    command = options.command
    environment = {"script": " ".join(map(shlex.quote, command)), "seed": options.seed, "diagnose": options.diagnose}
    commit = _commit(os.path.dirname(os.path.abspath(command[0])) if command[0] != "-m" else os.getcwd())
    environment.update({"commit": commit} if commit else {})
    environment.update({"dtypes": options.dtypes} if options.dtypes else {})
    environment.update({"cuda_redirected_to": options.device} if options.device else {})
    if not options.resume or not os.path.exists(options.resume):
        return Report(environment=environment, baseline=options.baseline), planned
    report = Report.load(options.resume, 1 << 40)  # its own
    report.baseline = options.baseline
    done = [each for each in planned if is_finished(report, each)]
    recorded = [(each.label, report.run_of(each.level, each.repeat).identity, each.identity()) for each in done]
    check_identity(recorded, options.resume)
    return report, [each for each in planned if each not in done]


def _commit(folder):
    """Return the git commit of a folder, with "-dirty" if files differ from it; None without git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() or None if done.returncode == 0 else None


def is_finished(report, planned):
    """Return whether a report has this run, completely. Failed and interrupted runs are done again."""
    run = report.run_of(planned.level, planned.repeat)
    return run is not None and run.status in FINISHED


def describe_plan(options, planned, missing):
    """Return what will be run, in one sentence each: the runs that are missing, and how speed is measured."""
    steps = "the whole script" if options.steps is None else f"{options.steps} steps"
    labels = ", ".join(each.label for each in missing)
    runs = f"{len(missing)} run{'' if len(missing) == 1 else 's'}"
    told = [f"{runs} of {steps}: {labels}." if missing else f"All {len(planned)} runs are kept."]
    rows = len(options.rows)
    if options.timing_steps and rows > 1 and options.timing_rounds is None:
        short = f"{rows * ROUNDS} runs of {_short_steps(options)} steps, which measure the speed"
        told.append(f"Then {short}, unless half precision is emulated here.")
    elif options.timing_steps and rows > 1:
        told.append(f"Then {rows * options.timing_rounds} runs of {_short_steps(options)} steps measure the speed.")
    return " ".join(told)


def run_in_subprocesses(options, planned, report, progress, ended):
    """Do the runs in child processes, one after another, and write the report after each.

    The series ends after a baseline that failed.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was recorded is in the report.
        AmpError: torch or the device differ from those of the runs that the report already has.
    """
    runner = _Runner(options, report, progress)

    def on_end(each, recorded):
        add_recorded(report, options.rows, each, recorded)
        ended[each.level, each.repeat] = recorded
        write_json(options, report)
        return not ends_series(report, each, recorded.run)

    try:
        runner.run(planned, on_end)
    except KeyboardInterrupt:
        for each, child in runner.children[-1:]:
            if (each.level, each.repeat) not in ended:
                on_end(each, child)
        raise
    if options.timing_steps:
        _time_in_turn(options, report, progress, runner)


def _time_in_turn(options, report, progress, runner):
    """Do short runs of all rows in turn, in rounds, one at a time. A round that one row does not have is repeated.

    Without ``--timing-rounds``, there are none where half precision is emulated.
    """
    planned = [each for each in plan_series(options) if each.repeat == 0 and is_finished(report, each)]
    runs = [report.runs[each.level] for each in planned]
    done = min([len(run.timings or []) for run in runs], default=0)
    if options.timing_rounds is None and emulates_half(report) and not done:
        for run in report.runs.values():
            run.timings = []
        return write_json(options, report)
    if len(runs) < 2:  # there is nothing to compare
        return
    rounds = range(done, options.timing_rounds or (FEW_ROUNDS if runner.starts_long() else ROUNDS))
    if not rounds:
        return
    for run in runs:
        run.timings = (run.timings or [])[:done] or None  # None: before the first round, the long runs' times are used
    steps = _short_steps(options)
    progress.begin_phase(len(rounds) * len(planned), steps)

    def on_end(each, recorded):
        run = recorded.run
        timing = Run(status=run.status, error=run.error, step_seconds=run.step_seconds, samples=run.samples)
        report.runs[each.level].timings = (report.runs[each.level].timings or []) + [timing]
        write_json(options, report)

    for number in rounds:
        turn = [_short(each, steps) for each in (planned if number % 2 == 0 else planned[::-1])]
        runner.run(turn, on_end, f" timing {number + 1}")


def _short_steps(options):
    return min(options.timing_steps, options.steps or options.timing_steps)


def _short(planned, steps):
    quick = dict(planned.options, diagnose=False, memory=False)
    return replace(planned, steps=steps, options=quick)


class _Runner:
    """Does runs in child processes; ``children`` has each ``(PlannedRun, SubprocessRun)`` that was started."""

    def __init__(self, options, report, progress):
        self.children = []
        self._options, self._report, self._progress = options, report, progress
        self._known = [run.identity for _, _, run in report.every_run() if run.status in FINISHED]

    def run(self, planned, on_end, suffix=""):
        """Do runs one after another; call ``on_end`` with each, and begin no others after it has returned False.

        Args:
            suffix: of the runs' names.
        """
        for each in planned:
            name = each.name + suffix.replace(" ", "-")
            child = SubprocessRun(each, self._options.verbose, name, self._report.checkpoints())
            self.children.append((each, child))
            run_one(child, each.label + suffix, self._progress, functools.partial(self._check_versions, each, child))
            if on_end(each, child) is False:
                return

    def starts_long(self):
        """Return whether a run trained for less time than it took to start."""
        ended = [child for _, child in self.children if child.run.status in FINISHED]
        return any(2 * sum(child.run.step_seconds) < child.seconds for child in ended)

    def _check_versions(self, planned, child, event):
        """Raise if a run has a different torch or device than earlier runs of the same interpreter."""
        identity = child.run.identity
        found = {name: identity[name] for name in ("torch", "device") if name in identity}
        for other in self._known if "environment" in event else ():
            if all(other.get(name) == identity[name] for name in ("interpreter", "environment", "launcher")):
                check_identity([(planned.label, other, found)], self._options.resume)


def write_json(options, report):
    """Write the report if ``--json`` or ``--resume`` gives a file; warn if that fails, since the series goes on."""
    if options.json is not None:
        try:
            report.save(options.json)
        except AmpError as error:
            _warn(f"warning: {error} The series goes on.")


@functools.lru_cache(maxsize=None)
def _warn(text):
    """Print a warning to stderr once, although it recurs after each run."""
    print(text, file=sys.stderr)
