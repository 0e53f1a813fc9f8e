"""A script as the input of both rewriters: parsed, with one statement per line and uniform line endings."""

import ast
import re
from typing import List, NamedTuple, Tuple

import libcst as cst

from ...errors import AmpError
from ..reading.source import Source, parse

#: The deepest syntax tree that LibCST rewrites within Python's default limit of recursion.
_DEEPEST = 100
_STRING = re.compile("\"[^\"]*\"|'[^']*'")


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
        _check_depth(source, path)
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise AmpError(f"{path} is not Python 3: {_fault(source) or str(error).splitlines()[0]}") from None
        self._parts = dict(_split_lines(Source(path, source.encode("utf-8")), module.default_indent))
        lines, self.old_lines = [], {}
        for at, line in enumerate(source.split("\n"), 1):
            lines += self._parts.get(at, [line])
            self.old_lines.update(dict.fromkeys(range(len(self.old_lines) + 1, len(lines) + 1), at))
        self.split = "\n".join(lines)

    def joined(self, source):
        """Return the new source, with what nothing has changed of ``a; b`` and ``if x: a`` on one line again."""
        old = self.source.split("\n")
        for parts, line in {tuple(parts): old[at - 1] for at, parts in self._parts.items()}.items():
            indent = len(parts[0]) - len(parts[0].lstrip())
            lines = r"\n\1".join(re.escape(each[indent:]) for each in parts)
            more = re.escape(parts[-1][indent : len(parts[-1]) - len(parts[-1].lstrip())])
            pattern = rf"^([ \t]*){lines}$" + (rf"(?!\n(?:[ \t]*\n)*\1{more})" if more else "")
            found = re.compile(pattern, re.MULTILINE)
            if parts[0] and not found.search(self.source):  # the script's own lines, and its strings, are not joined
                source = found.sub(lambda match, line=line: match.group(1) + line.lstrip(), source)
        return source


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


# -- lines with several statements -------------------------------------------------------------------------------------


def _split_lines(source, unit):
    """Yield (line, the lines that replace it) of the lines ``a; b`` and ``if x: a`` of a ``Source`` with a call.

    Args:
        unit: the indentation of a block.
    """
    breaks = {}  # line -> [(column of a statement, its indentation)]
    for node in source.nodes:
        for block in _blocks(node):
            indent = "" if isinstance(node, ast.Module) else unit
            indent = indentation(source.lines[_first_line(node) - 1]) + indent
            for run in _runs(block, source):
                line, column = source.position(run[0])
                begins = _begins_line(run[0], source)
                if len(run) > begins and any(isinstance(each, ast.Call) for one in run for each in ast.walk(one)):
                    indent = source.lines[line - 1][:column] if begins else indent
                    for line, column in map(source.position, run[begins:]):
                        breaks.setdefault(line, []).append((column, indent))
    for line, places in breaks.items():
        text, parts, start, indent = source.lines[line - 1], [], 0, ""
        for column, following in sorted(places):
            parts.append(indent + text[start:column].rstrip(" \t;"))
            start, indent = column, following
        yield line, parts + [indent + text[start:]]


def _blocks(node):
    """Return the lists of statements in a node."""
    blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [block for block in blocks if isinstance(block, list)]


def _first_line(node):
    """Return the first line of a node with statements; a ``case`` has only that of its pattern."""
    return getattr(getattr(node, "pattern", node), "lineno", 1)


def _runs(block, source):
    """Return the statements of a block as a list of lists of those on one line, or on lines that a backslash joins."""
    runs = []
    for statement in block:
        if not runs or _begins_line(statement, source):
            runs.append([])
        runs[-1].append(statement)
    return runs


def _begins_line(statement, source):
    """Return whether a statement is the first on its line, which a backslash does not join to the line before."""
    line, column = source.position(statement)
    before = _STRING.sub("", source.lines[line - 2].rstrip()) if line > 1 else ""
    return not source.lines[line - 1][:column].strip() and ("#" in before or not before.endswith("\\"))


def indentation(line):
    """Return the whitespace at the beginning of a line."""
    return line[: len(line) - len(line.lstrip())]
