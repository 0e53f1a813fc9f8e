"""``audit``: run a script in its own precision, and say what the precision does to its training."""

import json
import shlex

from ..diagnostics.audit.audit_text import to_text
from ..support import files, terminal
from . import watched_run
from .argument_parser import CommandParser
from .run_command import parse_level, script_command
from .run_progress import Progress

#: The module that makes the audit in the script's process (see ``RunOptions``).
WATCH = "ampcompat.diagnostics.audit.audit"


def audit(arguments):
    """Run the script, print the audit, and return the exit code: 1 if something is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options, "audited")
    planned = {"level": "audit", "opt_level": options.opt_level, "launcher": options.launcher}
    report = watched_run.observed(options, command, Progress(steps=options.steps), "audit", WATCH, **planned)
    terminal.show(to_text(report, command, terminal.columns(100, least=80, most=110), options.launcher))
    if options.json is not None:
        files.write(options.json, json.dumps(report, indent=1) + "\n")
    if options.html is not None:
        from ..diagnostics.audit.audit_page import to_html

        files.write(options.html, to_html(report, command, options.launcher))
    failing = [each for each in report["findings"] if each["is_wrong"] or options.fail_on == "note"]
    return 1 if failing and options.fail_on != "never" else 0


def _parser():
    parser = CommandParser(
        prog="ampcompat audit",
        description="Run an unchanged script for some steps in its own precision, and say what that does to its "
        "training: updates that half weights lose, state that rounds to 0, gradients without a loss scale. Arguments "
        "after SCRIPT or MODULE are passed to it.",
    )
    parser.add_output("--json", metavar="FILE", help="write the audit as JSON")
    parser.add_output("--html", metavar="FILE", help="write the audit as an HTML page")
    fail = "exit code 1 if something is wrong (the default), if there is as much as a note, or never"
    parser.add_argument("--fail-on", choices=("wrong", "note", "never"), default="wrong", help=fail)
    level = "audit the script at a level, as `ampcompat run --opt-level` trains it, instead of in its own precision"
    parser.add_argument("--opt-level", type=parse_level, metavar="LEVEL", help=level)
    launcher = "such as 'torchrun --nproc_per_node 2'; rank 0 is observed"
    parser.add_argument("--launcher", type=shlex.split, default=[], metavar="COMMAND", help=launcher)
    watched_run.add_options(parser, least_steps=1)
    return parser
