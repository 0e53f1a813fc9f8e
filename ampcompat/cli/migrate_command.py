"""``migrate``: rewrite a script for Apex to plain torch, or write a level into one without Apex.

It prints a diff unless it is asked to write.
"""

import difflib
import os
import shlex
import sys

from ..errors import AmpError
from ..support import files
from ..support.terminal import printable, show
from .argument_parser import CommandParser
from .run_command import parse_level

#: Bytes of the largest script that is read, unless the user allows more: LibCST takes up to about 10 s of a CPU for it.
LARGEST = (1 << 20) // 10
NOT_INSTALLED = "this needs LibCST: pip install libcst."


def migrate(arguments):
    """Print the diff, or write the file; return 1 if something is left to do by hand."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.write and options.output:
        parser.error("--write changes the script itself, -o writes another file; choose one")
    parser.check_outputs(options, [options.script])
    if options.output and os.path.isfile(options.output) and not options.force:
        parser.error(f"{options.output} exists; give --force to replace it")
    rewrite, target = _rewriter(parser, options), options.script if options.write else options.output
    source = _read(options.script, options.max_size)
    result = rewrite(source, options.script)
    if result.source == source:
        return _unchanged(options.script, result)
    if target is None:
        diff = _diff(source, result.source, options.script, options.to_level or "torch.amp")
        sys.stdout.write(printable(diff) if sys.stdout.isatty() else diff)  # a program needs it as it is
    else:
        files.write(target, result.source)
    sys.stdout.flush()
    _report(options.script, result)
    if target is not None:
        show(f"wrote {target}{_comparison(options, result)}")
    return 1 if result.left else 0


def _parser():
    parser = CommandParser(
        prog="ampcompat migrate",
        description="Rewrite a script for Apex to torch.autocast and GradScaler; with --to-level, the opposite: write "
        "amp.initialize and amp.scale_loss into a script without Apex. Exit code 0: all of it, or there is nothing to "
        "migrate; 1: something is left, marked with comments; 2: it cannot be rewritten.",
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file that calls amp.initialize, or trains without it"
    )
    parser.add_argument(
        "--to-level",
        type=parse_level,
        metavar="LEVEL",
        help="O0 to O5: do not leave amp, but write it, at this level, into a script without Apex",
    )
    parser.add_argument("--write", action="store_true", help="change the file instead of printing a diff")
    parser.add_output("-o", "--output", metavar="FILE", help="write the new script here, if there is no such file yet")
    parser.add_argument("--force", action="store_true", help="let -o replace an existing file")
    parser.add_max_size(LARGEST)
    return parser


def _rewriter(parser, options):
    """Return the function (source, path) -> ``Migration``; without LibCST, exit."""
    try:
        from ..static_analysis.migrate import migrate as to_torch
        from ..static_analysis.migrate import write_level
    except ImportError as error:
        if error.name != "libcst":
            raise
        parser.error(NOT_INSTALLED)
    return to_torch if options.to_level is None else lambda source, path: write_level(source, options.to_level, path)


def _unchanged(path, result):
    """Say that a script was not rewritten; return the exit code."""
    if not result.left:
        show(f"nothing to migrate: {path} does not use Apex")
        return 0
    _report(path, result)
    show(f"nothing to rewrite automatically: {path} only has what an earlier run left; edit it and remove the comments")
    return 1


def _report(path, result):
    """Print notes and what is left to stderr, so that a diff on stdout can be piped."""
    for line, note in result.notes:
        show("{}: note: {}".format(f"{path}:{line}" if line else path, note), file=sys.stderr)
    for line, reason in result.left:
        show("{}: left: {}".format(f"{path}:{line}" if line else path, reason), file=sys.stderr)


def _comparison(options, result):
    """Return the command that compares a new script with the old one, if nothing is left to do by hand."""
    if result.left or options.output is None:
        return ""
    paths = [shlex.quote(path) for path in (options.output, options.script)]
    return "; compare: ampcompat ab --against {} {}".format(*paths)


def _read(path, largest):
    try:
        return files.read(path, largest).decode("utf-8")
    except UnicodeDecodeError:
        raise AmpError(f"cannot read {path}: it is not UTF-8 text.") from None


def _diff(before, after, path, name):
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), path, f"{path} ({name})")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
