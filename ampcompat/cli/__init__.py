"""The desk: ``python -m ampcompat run | ab | report | install | uninstall | info``.

Owns: arguments, exit codes, what is printed on a terminal.
Must not touch: anything that decides. A wrong argument is one line on stderr and exit code 2, never a traceback.
The surprise: each command has a parser of its own and loads its room only when asked, so that ``run`` needs no torch.
"""

import argparse
import importlib
import os
import sys

from .. import __version__
from .parsing import LineParser

#: command -> (module of this package, what it does). The module has a function of the
#: command's name: ``run(arguments) -> exit code``.
COMMANDS = {
    "run": ("run", "run a script written for Apex, unmodified"),
    "ab": ("ab", "run a script once per opt level and show how the levels differ"),
    "report": ("report", "show what `ab --json` wrote again: tables, a page, an image"),
    "install": ("install", "make `import apex` mean ampcompat's in this Python environment"),
    "uninstall": ("install", "undo `install`"),
    "info": ("info", "say what this torch can do, and which backend it gets"),
}


def main(arguments=None):
    """Run one command and return its exit code."""
    parser = LineParser(prog="ampcompat", description="Apex's amp on any PyTorch.", epilog=_overview())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the overview keeps its lines
    parser.add_argument("--version", action="version", version="ampcompat " + __version__)
    parser.add_argument("command", nargs="?", choices=sorted(COMMANDS), metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs="...", metavar="...", help="its arguments; COMMAND --help lists them")
    stated = parser.parse_args(arguments)
    if stated.command is None:
        parser.print_help()
        return 0
    room = importlib.import_module("." + COMMANDS[stated.command][0], __name__)
    try:
        code = getattr(room, stated.command)(stated.arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `... | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _overview():
    return "commands:\n" + "\n".join("  {:10} {}".format(name, row[1]) for name, row in COMMANDS.items())
