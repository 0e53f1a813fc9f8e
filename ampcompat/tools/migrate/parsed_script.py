"""A script as the input of both rewriters: parsed, with one statement per line and uniform line endings."""

import difflib
from typing import List, NamedTuple, Tuple

import libcst as cst

from ...errors import AmpError
from ..check.source import parse
from .imports_and_marks import OneStatementPerLine


class Migration(NamedTuple):
    """The result.

    Attributes:
        source: the new source.
        notes: (line in the old source or 0, note on a change).
        left: (line in the old source or 0, what could not be rewritten); marked with comments in the new source.
    """

    source: str
    notes: List[Tuple[int, str]]
    left: List[Tuple[int, str]]


class ParsedScript:
    """A script to rewrite.

    Args:
        source: its source, with ``\\n`` at the ends of lines.
        path: its name, for messages.

    Attributes:
        source, path: these.
        split: the source with one statement per line.
        old_lines: line of ``split`` -> line of the source.

    Raises:
        AmpError: it is not Python 3.
    """

    def __init__(self, source, path):
        self.source, self.path = source, path
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise AmpError(f"{path} is not Python 3: {_fault(source) or str(error).splitlines()[0]}") from None
        self.split = module.visit(OneStatementPerLine()).code
        self.old_lines = _old_lines(source, self.split)


def rewritten(source, path, rewrite):
    """Return the ``Migration`` of a script, with the script's own line endings.

    Args:
        source: its source.
        path: its name, for messages.
        rewrite: a function: ``ParsedScript`` -> ``Migration``.
    """
    result = rewrite(ParsedScript(source.replace("\r\n", "\n"), path))
    return result._replace(source=result.source.replace("\n", "\r\n")) if "\r\n" in source else result


def _old_lines(source, split):
    old, new, lines = source.split("\n"), split.split("\n"), {}
    for _, first, last, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        for at in range(start, end):
            lines[at + 1] = min(first + at - start, max(last - 1, first)) + 1
    return lines


def _fault(source):
    """Return Python's error message for source that it cannot parse; None if it can."""
    try:
        parse(source)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return where + error.msg + (": " + error.text.strip() if error.text else "")
    except ValueError as error:  # a null byte, before Python 3.11.4
        return str(error)
    return None
