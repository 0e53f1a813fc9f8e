"""``audit``: run a script in its own precision, and say what the precision does to its training.

The script runs in its own process. This process does not import torch.
"""

import argparse
import json
import shlex
import sys

from ..abtest.planned_run import PlannedRun
from ..abtest.report_data import NOTHING_TO_RECORD
from ..abtest.running.subprocess_supervisor import SubprocessRun, exit_code, run_one, sigterm_as_interrupt
from ..errors import AmpError
from ..support import files, terminal
from . import device_option
from .argument_parser import SCRIPT_USAGE, CommandParser, whole_number
from .run_command import script_command
from .run_progress import make_progress

FAILED = 1

#: The number of steps that are observed without ``--steps``.
STEPS = 50

#: The module that makes the audit in the script's process (see ``RunOptions``).
WATCH = "ampcompat.tools.audit.recorded_audit"


def audit(arguments):
    """Run the script, print the audit, and return the exit code: ``FAILED`` if something is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options)
    if command[0] == "-":
        parser.error("a script from stdin cannot be audited: pass a file")
    device_option.check_option(parser, options.device)
    try:
        with sigterm_as_interrupt():
            report = _run(options, command)
        _print(report, command, options.launcher)
        if options.json is not None:
            files.write(options.json, json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt as error:
        return exit_code(error)
    except AmpError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return FAILED
    is_wrong = any(each["is_wrong"] for each in report["findings"])
    return FAILED if is_wrong and options.fail_on == "wrong" else 0


def _parser():
    parser = CommandParser(
        prog="ampcompat audit",
        usage=SCRIPT_USAGE,
        description="Run an unchanged script for some steps in its own precision, and say what that does to its "
        "training: updates that half weights lose, state that rounds to 0, gradients without a loss scale. Arguments "
        "after SCRIPT or MODULE are passed to it.",
    )
    add = parser.add_argument
    add("--steps", type=whole_number(1), default=STEPS, metavar="N", help="optimizer steps to observe; default: 50")
    parser.add_output("--json", metavar="FILE", help="write the audit as JSON")
    fail = "exit code 1 if something is wrong (the default), or never"
    add("--fail-on", choices=("wrong", "never"), default="wrong", help=fail)
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    launcher = "such as 'torchrun --nproc_per_node 2'; rank 0 is observed"
    add("--launcher", type=shlex.split, default=[], metavar="COMMAND", help=launcher)
    add("--verbose", action="store_true", help="print the script's output")
    device_option.add_option(parser)
    add("-m", nargs=argparse.REMAINDER, dest="module", help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    return parser


def _run(options, command):
    """Run the script in a child process and return the report of its audit.

    Raises:
        AmpError: the script failed before a step was observed; the message has the end of its output.
    """
    run_options = {"watch": WATCH, "losses_by_line": True, "diagnose": False, "memory": False, "verbosity": 0}
    planned = PlannedRun(
        level="audit",
        command=command,
        seed=options.seed,
        steps=options.steps,
        options=run_options,
        launcher=options.launcher,
        device=options.device,
    )
    child = SubprocessRun(planned, options.verbose, name="audit")
    found = []
    keep = lambda event: found.extend([event["audit"]] if "audit" in event else [])  # noqa: E731
    run_one(child, "audit", make_progress(steps=options.steps), keep)
    if found and found[0]["steps"]:
        return found[0]
    reason = None if child.run.error in NOTHING_TO_RECORD else child.run.error
    raise AmpError("\n".join(filter(None, [child.output.strip(), reason or "it did not make a step"])))


def _print(report, command, launcher):
    from ..tools.audit.audit_text import to_text

    terminal.show(to_text(report, command, terminal.columns(100, least=80, most=110), launcher))
