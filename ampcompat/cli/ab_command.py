"""``ab``: run a script once per opt level and compare the levels.

Each level runs in its own process, so that a crash or a leak of one level does not affect the others, and what was
recorded is kept after Ctrl-C. This process does not import torch.
"""

import os
import sys

from ..abtest.running.cluster_plan import COMMANDS, run_planned, write_plan
from ..abtest.running.subprocess_supervisor import exit_code
from . import report_options
from .ab_find_keep_fp32 import print_search
from .ab_live import LivePage
from .ab_options import checked_command, new_parser
from .ab_results import advice_without_cuda, how_to_resume, print_report
from .ab_runs import begin_or_resume, describe_plan, plan_series, run_in_subprocesses
from .argument_parser import CommandParser
from .run_progress import Progress

#: The exit code where no level, or not the baseline, can be judged, or where a file cannot be written.
NOT_JUDGED = 1


def ab(arguments):
    """Run the levels, print the report, and return the exit code."""
    parser = new_parser()
    options = parser.parse_args(arguments)
    options.command = checked_command(parser, options)
    planned = plan_series(options)
    report, missing = begin_or_resume(options, planned)
    if options.plan:
        return _plan(parser, options.plan, report, planned)
    print(describe_plan(options, planned, missing), file=sys.stderr)
    if options.dry_run:
        return 0
    rows, interrupted = _run_and_print(options, report, planned, missing)
    if report_options.write_files(parser, options, report, rows):
        return NOT_JUDGED
    if interrupted is not None:
        print(how_to_resume(options, arguments), end="", file=sys.stderr)
        return interrupted
    failed_on = report_options.exit_code(parser, options, report, rows)
    failed = [level for level, run in report.runs.items() if run.status == "failed"]
    line = advice_without_cuda(options, report, arguments) if len(failed) == len(report.runs) else None
    if line is not None:
        print(line, file=sys.stderr)
    is_judged = report.baseline not in failed and len(failed) < len(report.runs)
    return failed_on or (0 if is_judged else NOT_JUDGED)


def _run_and_print(options, report, planned, missing):
    """Do the runs that are missing in the report, and print it; return its rows, and the exit code if interrupted."""
    kept = len(planned) - len(missing)
    if kept:
        print(f"{options.resume}: {kept} of {len(planned)} runs kept", file=sys.stderr)
    progress = Progress(steps=options.steps, runs=len(planned), kept=kept)
    live = LivePage(progress, report, planned) if options.live else None
    if live is not None:
        print(f"the report so far: {live.address}", file=sys.stderr, flush=True)
    progress, ended = live or progress, {}
    interrupted = _interruptible(run_in_subprocesses, options, missing, report, progress, ended)
    rows = report_options.judge(options, report)
    if live is not None:
        live.close()
    print_report(options, report, ended, rows)
    if options.find_keep_fp32 and interrupted is None:
        interrupted = _interruptible(print_search, report, options, planned, progress)
    return rows, interrupted


def _plan(parser, folder, report, planned):
    try:
        write_plan(folder, report, planned)
    except OSError as error:
        parser.error(f"cannot write {folder}: {error.strerror}.")
    path = os.path.join(folder, COMMANDS)
    print(f"wrote {len(planned)} commands to {path}; afterwards: ampcompat report {folder}")
    return 0


def planned(arguments):
    """Do one run of a folder of ``ab --plan``; return 1 if it failed, 130 or 143 if it was interrupted."""
    parser = CommandParser(prog="ampcompat planned", description="Do one run of a folder of `ampcompat ab --plan`.")
    parser.add_argument("folder", metavar="DIR", help="the folder")
    parser.add_argument("name", metavar="NAME", help="the run; its record is written to DIR/NAME.json")
    options = parser.parse_args(arguments)
    run = run_planned(options.folder, options.name)
    print("{}: {}{}".format(options.name, run.status, ": " + run.error if run.error else ""))
    return 0 if run.status in ("ok", "stopped") else 1


def _interruptible(function, *args):
    """Call a function that does runs; return the exit code if interrupted, otherwise None."""
    try:
        function(*args)
    except KeyboardInterrupt as error:
        return exit_code(error)
    return None
