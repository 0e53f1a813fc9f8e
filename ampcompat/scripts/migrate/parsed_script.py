"""A script as the input of both rewriters: parsed, with one statement per line and uniform line endings."""

import ast
import difflib
from typing import List, NamedTuple, Tuple

import libcst as cst

from ...errors import AmpError
from ..model.source import parse
from .statement_lines import StatementLines

#: The deepest syntax tree that LibCST rewrites within Python's default limit of recursion.
_DEEPEST = 100


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
        joined: a function: the new source -> it, with the unchanged ones of ``a; b`` on one line again.
        old_lines: line of ``split`` -> line of the source.

    Raises:
        AmpError: it is not Python 3.
    """

    def __init__(self, source, path):
        self.source, self.path = source, path
        _check_depth(source, path)
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise AmpError(f"{path} is not Python 3: {_fault(source) or str(error).splitlines()[0]}") from None
        lines = StatementLines(module)
        self.split, self.joined = lines.split, lines.joined
        self.old_lines = _old_lines(source, self.split)


def rewritten(source, path, rewrite):
    """Return the ``Migration`` of a script, with the script's own line endings.

    Args:
        source: its source.
        path: its name, for messages.
        rewrite: a function: ``ParsedScript`` -> ``Migration``.
    """
    try:
        result = rewrite(ParsedScript(source.replace("\r\n", "\n"), path))
    except RecursionError:
        raise AmpError(f"{path} has statements that are too long for LibCST; break them into several.") from None
    return result._replace(source=result.source.replace("\n", "\r\n")) if "\r\n" in source else result


def _check_depth(source, path):
    """Raise an error for code nested so deeply that LibCST's parser would end the process."""
    try:
        level = [parse(source)]
    except (RecursionError, MemoryError):
        raise AmpError(f"{path} is nested too deeply for Python; break it into several statements.") from None
    except (SyntaxError, ValueError) as error:
        if "too many nested parentheses" in str(error):
            raise AmpError(f"{path} is not Python 3: {_fault(source)}") from None
        return  # LibCST says what is wrong
    depth = 0
    while level and depth <= _DEEPEST:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        line = next((node.lineno for node in level if hasattr(node, "lineno")), 1)
        message = "{}, line {}: code is nested more than {} levels deep, in operators, brackets or elif; break it up."
        raise AmpError(message.format(path, line, _DEEPEST))


def _old_lines(source, split):
    old, new, lines = source.split("\n"), split.split("\n"), {}
    if old == new:  # comparing thousands of equal lines would take minutes
        return {at: at for at in range(1, len(old) + 1)}
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
        return where + error.msg + (": " + error.text.strip()[:80] if error.text else "")
    except ValueError as error:  # a null byte, before Python 3.11.4
        return str(error)
    return None
