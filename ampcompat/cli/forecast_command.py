"""``forecast``: predict from one float32 run which levels will work, and which layers must stay float32.

The script runs in its own process, at O0. This process does not import torch.
"""

import json

from ..diagnostics.forecast.forecast_text import to_text
from ..support import files, terminal
from ..support.child_environment import ChildEnvironment
from . import watched_run
from .argument_parser import CommandParser
from .run_command import script_command
from .run_progress import Progress

#: The module that makes the forecast in the script's process (see ``RunOptions``).
WATCH = "ampcompat.diagnostics.forecast.forecast_observer"


def forecast(arguments):
    """Run the script, print the forecast, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options, "forecast")
    found = forecast_of(options, command, Progress(steps=options.steps))
    print(to_text(found, command, terminal.columns(80, least=80, most=100), options.details))
    if options.json is not None:
        files.write(options.json, json.dumps({"levels": found["levels"]}, indent=1) + "\n")
    return 0


def forecast_of(options, command, progress, **planned):
    """Run a script at O0, and return its forecast; arguments and errors as for ``watched_run.observed``."""
    return watched_run.observed(
        options,
        command,
        progress,
        "forecast",
        WATCH,
        run_options={"initialize": {"loss_scale": 1.0}},
        label="float32",
        level="O0",
        opt_level="O0",
        environment=ChildEnvironment(is_uncompiled=True).to_env(),
        **planned,
    )


def _parser():
    parser = CommandParser(
        prog="ampcompat forecast",
        description="Run an unchanged script for some steps in float32, and predict which opt levels will work, and "
        "with which layers in float32. Arguments after SCRIPT or MODULE are passed to it.",
    )
    parser.add_output("--json", metavar="FILE", help="write the forecast as JSON")
    parser.add_argument("--details", action="store_true", help="print all findings, and the margin of each module")
    watched_run.add_options(parser, least_steps=2)
    return parser
