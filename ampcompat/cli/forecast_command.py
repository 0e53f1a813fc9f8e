"""``forecast``: predict from one float32 run which levels will work, and which layers must stay float32.

The script runs in its own process, at O0. This process does not import torch.
"""

import argparse
import json
import sys

from ..abtest.judging.verdict import ACCEPTED, REJECTED, judge
from ..abtest.planned_run import PlannedRun
from ..abtest.report_data import NOTHING_TO_RECORD
from ..abtest.running.subprocess_supervisor import SubprocessRun, exit_code, run_one, sigterm_as_interrupt
from ..errors import AmpError
from ..support import files, terminal
from ..support.child_environment import ChildEnvironment
from . import device_option
from .argument_parser import SCRIPT_USAGE, CommandParser, whole_number
from .run_command import script_command
from .run_progress import make_progress

FAILED = 1

#: The number of optimizer steps that are observed without ``--steps``.
STEPS = 50

#: The module that makes the forecast in the script's process (see ``RunOptions``).
WATCH = "ampcompat.tools.forecast.forecast_observer"


def forecast(arguments):
    """Run the script, print the forecast, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options)
    if command[0] == "-":
        parser.error("a script from stdin cannot be forecast: pass a file")
    device_option.check_option(parser, options.device)
    try:
        with sigterm_as_interrupt():
            found = run_forecast(options, command, make_progress(steps=options.steps))
    except KeyboardInterrupt as error:
        return exit_code(error)
    except AmpError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return FAILED
    print_forecast(found, command, options.details)
    try:
        write_files(found, options, command)
    except AmpError as error:  # the forecast has been printed
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser():
    parser = CommandParser(
        prog="ampcompat forecast",
        usage=SCRIPT_USAGE,
        description="Run an unchanged script for some steps in float32, and predict which opt levels will work, and "
        "with which layers in float32. Arguments after SCRIPT or MODULE are passed to it.",
    )
    add = parser.add_argument
    add("--steps", type=whole_number(2), default=STEPS, metavar="N", help="optimizer steps to observe; default: 50")
    parser.add_output("--json", metavar="FILE", help="write the forecast as JSON")
    parser.add_output("--html", metavar="FILE", help="write a page with a map of modules and levels")
    add("--details", action="store_true", help="print all findings, and the margin of each module")
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    add("--verbose", action="store_true", help="print the script's output")
    device_option.add_option(parser)
    add("-m", nargs=argparse.REMAINDER, dest="module", help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    return parser


def run_forecast(options, command, progress):
    """Run a script in a child process and return its forecast, of ``forecast_json.make``.

    Args:
        options: with ``steps``, ``seed``, ``device`` and ``verbose``.

    Raises:
        AmpError: the script failed before a step was recorded; the message has the end of its output.
    """
    run_options = {"watch": WATCH, "losses_by_line": True, "diagnose": False, "memory": False, "verbosity": 0}
    planned = PlannedRun(
        level="O0",
        opt_level="O0",
        command=command,
        seed=options.seed,
        steps=options.steps,
        options=dict(run_options, initialize={"loss_scale": 1.0}),
        device=options.device,
        environment=ChildEnvironment(is_uncompiled=True).to_env(),
    )
    child = SubprocessRun(planned, options.verbose, name="forecast")
    found = []
    keep = lambda event: found.extend([event["forecast"]] if "forecast" in event else [])  # noqa: E731
    run_one(child, "float32", progress, keep)
    if found and isinstance(found[0], dict):
        return found[0]
    told = None if child.run.error in NOTHING_TO_RECORD else child.run.error
    raise AmpError("\n".join(filter(None, [child.output.strip(), told or (found or ["it did not make a step"])[0]])))


def print_forecast(found, command, details):
    """Print a forecast."""
    from ..tools.forecast.forecast_text import to_text

    width = terminal.columns(80, least=80, most=100)
    print(to_text(found, command, width, details))


def agreement(found, report):
    """Return at which levels the verdicts of a report agree with a forecast, as one sentence."""
    verdicts = {level: verdict.kind for level, verdict in judge(report).items() if level in found["levels"]}
    judged = [level for level, kind in verdicts.items() if kind in (ACCEPTED, REJECTED)]
    works = {level: found["levels"][level]["prediction"] == "works" for level in judged}
    wrong = [level for level in judged if works[level] != (verdicts[level] == ACCEPTED)]
    told = f"The forecast was right at {len(judged) - len(wrong)} of {len(judged)} judged levels"
    return told + ("; wrong at {}.".format(", ".join(wrong)) if wrong else ".")


def write_files(found, options, command):
    """Write the files that the command line requests."""
    if options.json is not None:
        files.write(options.json, json.dumps({"levels": found["levels"]}, indent=1) + "\n")
    if options.html is not None:
        from ..tools.forecast.forecast_page import to_html

        files.write(options.html, to_html(found, command))
