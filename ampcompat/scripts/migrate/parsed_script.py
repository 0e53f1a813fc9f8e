"""A script as the input of both rewriters: parsed, with one statement per line and uniform line endings."""

import ast
import difflib
import re
from typing import List, NamedTuple, Tuple

import libcst as cst

from ...errors import AmpError
from ..reading.source import parse
from . import syntax

#: The deepest syntax tree that LibCST rewrites within Python's default limit of recursion.
_DEEPEST = 100
#: Begins the comments that mark the parts of a line.
_MARK = "#;;;"
_PART = re.compile(_MARK + r"(\d+)(?::(\d+))?$")


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


# -- lines with several statements -------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line that was split: the original node, a suite or a line, and the source of each of its statements."""

    original: cst.CSTNode
    parts: List[str]


class StatementLines:
    """The lines of a module with several statements, or with a compound statement and its body.

    Args:
        module: the module.

    Attributes:
        split: its source with one statement per line, in which comments mark the parts of a line.
    """

    def __init__(self, module):
        self._lines = []
        self.split = module.visit(_Splitting(self._lines)).code

    def joined(self, source):
        """Return the new source, with parts that nothing has changed on one line again, and without the marks."""
        return cst.parse_module(source).visit(_Joining(self._lines)).code if _MARK in source else source


class _Splitting(cst.CSTTransformer):
    """Splits ``a; b``, ``if x: a`` and ``with a, b:``, so that a statement can become several."""

    def __init__(self, lines):
        super().__init__()
        self._lines = lines

    def _do_not_enter(self, node):
        return False

    visit_SimpleStatementLine = visit_SimpleStatementSuite = _do_not_enter

    def leave_With(self, original_node, updated_node):
        """Nest the items of a ``with`` if one of several is a ``scale_loss``."""
        items = [item.with_changes(comma=cst.MaybeSentinel.DEFAULT) for item in updated_node.items]
        if len(items) == 1 or not any("scale_loss" in syntax.text(item.item) for item in items):
            return updated_node
        body = updated_node.body
        for item in reversed(items[1:]):
            body = cst.IndentedBlock(body=[cst.With(items=[item], body=body)])
        return updated_node.with_changes(items=items[:1], body=body)

    def leave_SimpleStatementSuite(self, original_node, updated_node):
        """Put the statements of ``if x: a`` on separate lines if one is a call."""
        if not any(True for _ in syntax.calls(original_node)):
            return updated_node
        return cst.IndentedBlock(body=self._parts(updated_node), header=_comment(f"{_MARK}{len(self._lines) - 1}"))

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Put the statements of ``a; b`` on separate lines if one is a call."""
        if len(original_node.body) == 1 or not any(True for _ in syntax.calls(original_node)):
            return updated_node
        first, *others = self._parts(updated_node)
        return cst.FlattenSentinel([first.with_changes(leading_lines=updated_node.leading_lines), *others])

    def _parts(self, node):
        alone = [each.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for each in node.body]
        self._lines.append(_Line(node, list(map(syntax.text, alone))))
        mark = f"{_MARK}{len(self._lines) - 1}:"
        return [cst.SimpleStatementLine([each], trailing_whitespace=_comment(mark + str(at)))
                for at, each in enumerate(alone)]  # fmt: skip


class _Joining(cst.CSTTransformer):
    def __init__(self, lines):
        super().__init__()
        self._lines = lines

    def leave_IndentedBlock(self, original_node, updated_node):
        """Restore ``if x: a``, or the lines of a block."""
        mark = _number(updated_node.header)
        if mark is None:
            return updated_node.with_changes(body=self._joined(updated_node.body))
        line = self._lines[mark[0]]
        found = [self._part(each) for each in updated_node.body]
        if found == [(mark[0], at, True) for at in range(len(line.parts))]:
            return line.original
        return updated_node.with_changes(body=self._joined(updated_node.body), header=cst.TrailingWhitespace())

    def leave_Module(self, original_node, updated_node):
        """Restore the lines of the module."""
        return updated_node.with_changes(body=self._joined(updated_node.body))

    def _part(self, statement):
        """Return (number of the line, index of the part, whether it is unchanged) of a statement; None if it is new."""
        is_simple = isinstance(statement, cst.SimpleStatementLine)
        mark = _number(statement.trailing_whitespace) if is_simple else None
        if mark is None:
            return None
        same = len(statement.body) == 1 and syntax.text(statement.body[0]) == self._lines[mark[0]].parts[mark[1]]
        return mark + (same and (mark[1] == 0 or not statement.leading_lines),)

    def _joined(self, body):
        result, before = [], None
        for statement in body:
            part = self._part(statement)
            if part is not None:
                number, at, is_same = part
                original = self._lines[number].original
                end = original.trailing_whitespace if at + 1 == len(original.body) else cst.TrailingWhitespace()
                statement = statement.with_changes(trailing_whitespace=end)
                if is_same and before == (number, at - 1, True):
                    first = result.pop()
                    last = first.body[-1].with_changes(semicolon=original.body[at - 1].semicolon)
                    statement = first.with_changes(
                        body=[*first.body[:-1], last, *statement.body], trailing_whitespace=end
                    )
            result.append(statement)
            before = part
        return result


def _comment(text):
    return cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(text))


def _number(whitespace):
    """Return (number of the line, index of the part), or (number of the line,) for a block; None without a mark."""
    match = _PART.match(whitespace.comment.value) if whitespace.comment is not None else None
    return tuple(int(each) for each in match.groups() if each is not None) if match else None
