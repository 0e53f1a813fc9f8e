"""The command line: ``python -m ampcompat COMMAND``.

A wrong argument is one line on stderr and exit code 2. The module of a command is imported when the command is called,
so that ``run`` does not import torch.
"""

import argparse
import importlib
import os
import sys

from .. import __version__
from .argument_parser import INTERRUPTED, CommandParser

#: command -> (module of this package, what it does). The module has a function of the
#: command's name: ``run(arguments) -> exit code``.
COMMANDS = {
    "run": ("run", "run a script written for Apex, unmodified"),
    "check": ("check", "say whether a code base written for Apex runs unchanged"),
    "migrate": ("migrate", "rewrite a script for Apex into torch.autocast and GradScaler"),
    "checkpoint": ("checkpoint", "say what a checkpoint file holds, and convert it"),
    "ab": ("ab", "run a script once per opt level and compare the levels"),
    "report": ("report", "show reports that `ab --json` wrote, as tables, an HTML page or an image"),
    "install": ("install", "make `import apex` import ampcompat in this Python environment"),
    "uninstall": ("install", "undo `install`"),
    "selftest": ("selftest", "check ampcompat with this torch on this machine's device"),
    "info": ("info", "print what the installed torch supports, and which functions O1 and O4 cast"),
}


def main(arguments=None):
    """Run one command and return its exit code."""
    parser = CommandParser(
        prog="ampcompat", description="NVIDIA Apex's amp for any PyTorch and any device.", epilog=_command_list()
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    parser.add_argument("--version", action="version", version="ampcompat " + __version__)
    parser.add_argument("command", nargs="?", choices=sorted(COMMANDS), metavar="COMMAND", help="see below")
    parser.add_argument(
        "arguments", nargs="...", metavar="...", help="arguments of the command; COMMAND --help lists them"
    )
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    module = importlib.import_module("." + COMMANDS[options.command][0], __name__)
    try:
        code = getattr(module, options.command)(options.arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if options.command == "run":  # the script's own traceback
            raise
        print("ampcompat {}: interrupted".format(options.command), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `... | head` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _command_list():
    return "commands:\n" + "\n".join("  {:10} {}".format(name, row[1]) for name, row in COMMANDS.items())
