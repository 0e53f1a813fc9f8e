"""The command line: ``ampcompat COMMAND``.

A wrong argument prints one line to stderr and exits with code 2. The module of a command is imported when the command
is called, so that ``run`` does not import torch.
"""

import argparse
import difflib
import functools
import importlib
import os
import shlex
import sys

from .. import __version__
from ..errors import AmpError
from .argument_parser import CommandParser

#: command -> (its module here, without ``_command``; what it does). The module has a function of the
#: command's name: ``run(arguments) -> exit code``.
COMMANDS = {
    "run": ("run", "run a script for Apex, unchanged; with --opt-level any script, at that level"),
    "ab": ("ab", "run a script once per opt level and compare the levels"),
    "check": ("check", "say, without running it, whether a code base runs unchanged, and what will not work"),
    "audit": ("audit", "run a script as it is, and say what its precision does to its training"),
    "forecast": ("forecast", "predict from one float32 run which opt levels work, and with which layers in float32"),
    "estimate": ("estimate", "predict the memory of a script's step without its device; find the largest batch size"),
    "migrate": ("migrate", "rewrite a script for Apex to torch.autocast and GradScaler"),
    "report": ("report", "show reports of `ab --json` as tables, an HTML page or an image"),
    "planned": ("ab", "do one run of a folder of `ab --plan`"),
    "selftest": ("selftest", "check ampcompat with this torch on this machine's device"),
    "info": ("info", "print what the installed torch supports, and which functions O1 and O4 cast"),
    "install": ("install", "make `import apex` import ampcompat in this Python environment"),
    "uninstall": ("install", "undo `install`"),
}

#: Commands whose ``AmpError`` is that of the script, with the end of its output, and no wrong command line.
SCRIPT_FAILED = ("audit", "forecast", "estimate")


def main(arguments=None):
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _replace_unencodable_characters()
    description = "Train scripts in half precision, with NVIDIA Apex's amp or without it. Tested on CPUs only so far."
    parser = CommandParser(prog="ampcompat", description=description, epilog=_command_list())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    parser.add_argument("--version", action="version", version="ampcompat " + __version__)
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="see below")
    parser.add_argument(
        "arguments", nargs="...", metavar="...", help="arguments of the command; COMMAND --help lists them"
    )
    _check_first(parser, arguments)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    module = importlib.import_module(f".{COMMANDS[options.command][0]}_command", __name__)
    call = functools.partial(getattr(module, options.command), options.arguments)
    return call() if options.command == "run" else _exit_code(options.command, call)


def _exit_code(command, call):
    """Call a command, and return its exit code, or that of the signal or error which ended it."""
    from ..abtest.running.subprocess_supervisor import exit_code, sigterm_as_interrupt

    try:
        with sigterm_as_interrupt():
            code = call()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        print(f"ampcompat {command}: interrupted", file=sys.stderr)
        return exit_code(error)
    except AmpError as error:
        if command not in SCRIPT_FAILED:
            CommandParser(prog="ampcompat " + command).error(str(error))
        print(f"ampcompat {command}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `... | head` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _replace_unencodable_characters():
    """Print "?" for characters such as "−" or "√" that the output encoding (of a file on Windows) does not have."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _check_first(parser, arguments):
    """Exit with one line, with a suggestion, if the first argument is not a command or an option of ``parser``."""
    if not arguments or arguments[0] in COMMANDS or parser.options_among(arguments[:1]):
        return
    first, rest = arguments[0], arguments[1:]
    if first.startswith("-"):
        from .run_command import new_parser

        command = next((each for each in rest if each in COMMANDS), None)
        arguments = [each for each in arguments if each != command]
        shown = _shown(command or ("run" if new_parser().options_among([first]) else "COMMAND"), arguments)
        parser.error(f"{first} is not an option of ampcompat itself; options of a command come after it: {shown}")
    alike = difflib.get_close_matches(first, COMMANDS, 1)
    if first.endswith(".py") and os.path.isfile(first):
        hint = "did you mean: " + _shown("run", arguments)
    elif alike:
        hint = "did you mean: " + _shown(alike[0], rest)
    else:
        hint = "choose from " + ", ".join(COMMANDS)
    parser.error(f"{first!r} is not a command; {hint}")


def _shown(command, arguments):
    return " ".join(["ampcompat", command] + [shlex.quote(each) for each in arguments])


def _command_list():
    return "commands:\n" + "\n".join(f"  {name:10} {row[1]}" for name, row in COMMANDS.items())
