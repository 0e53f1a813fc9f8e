"""The size of the terminal, tables, and printable text, with which files and names cannot control the terminal."""

import os
import re
import shlex
import shutil
import sys

#: Control characters but tab and line feed, those that change the direction of text, other line breaks, lone
#: surrogates, and code points that no text has.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]"
)


def printable(text):
    """Return a text in which what a terminal or page would obey is written out, as ``\\x1b`` or ``\\u202e``."""
    return _CONTROLS.sub(_escaped, text)


def show(text="", file=None):
    """Print a text with names or content of files; on stdout, or to ``file``."""
    print(printable(text), file=file)


def columns(default=100, least=0, most=1 << 16):
    """Return the number of columns of the terminal, between ``least`` and ``most``; ``default`` if it is unknown."""
    return min(most, max(least, shutil.get_terminal_size((default, 24)).columns))


def aligned(rows, left=1):
    """Return the lines of a table of texts; all columns but the first ``left`` are aligned to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def can_redraw(stream):
    """Return whether a stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _escaped(match):
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def script_command():
    """Return the script of this process with its arguments, for a shell; None in a notebook or console."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if path is None:
        return None
    start = ["-m", re.sub(r"\.__main__$", "", spec.name)] if spec is not None else [sys.argv[0]]
    return " ".join(map(shlex.quote, start + sys.argv[1:]))
