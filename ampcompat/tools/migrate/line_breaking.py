"""Breaks lines of the new script that are longer than those of the old one."""

import textwrap

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from . import syntax
from .branches import MORE

_OPEN, _CLOSE = "([{", ")]}"


def break_long_lines(source, old, width):
    """Return the source with new lines of more than ``width`` characters broken.

    Args:
        source: the new source.
        old: the old source, whose lines are not changed.
        width: the maximum number of characters in a line.
    """
    kept = set(old.split("\n"))
    lines = source.split("\n")
    long = {at for at, line in enumerate(lines, 1) if len(line) > width and line not in kept}
    if not long:
        return source
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder(long, lines)
    wrapper.visit(finder)
    for first, last in sorted(finder.found, reverse=True):
        lines[first - 1 : last] = _broken(lines[first - 1 : last], width)
    result = []
    for line in lines:
        is_comment = line.lstrip().startswith("#") and len(line) > width and line not in kept
        result += broken_comment(line, width) if is_comment else [line]
    return "\n".join(result)


class _Finder(cst.CSTVisitor):
    """Finds the statements, or heads of compound statements, with lines that are too long.

    Attributes:
        found: (first line, last line) of them.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, long, lines):
        super().__init__()
        self._long, self._lines, self.found = long, lines, []

    def on_visit(self, node):
        """Visit a statement."""
        if isinstance(node, (cst.SimpleStatementLine, *syntax.COMPOUND)):
            first = self.get_metadata(PositionProvider, node).start.line
            last = self.get_metadata(PositionProvider, node).end.line
            if not isinstance(node, cst.SimpleStatementLine):
                first = self._head(node, first)
                last = self._end_of_head(node, first)
            if any(first <= at <= last for at in self._long) and not self._has_text_block(node, first, last):
                self.found.append((first, last))
        return super().on_visit(node)

    def _head(self, node, first):
        """Return the line of ``def``, after its decorators."""
        return self.get_metadata(PositionProvider, node.name).start.line if hasattr(node, "name") else first

    def _end_of_head(self, node, first):
        if not isinstance(node.body, cst.IndentedBlock):
            return first
        last = self.get_metadata(PositionProvider, node.body.body[0]).start.line - 1
        while last > first and self._lines[last - 1].strip()[:1] in ("", "#"):
            last -= 1
        return last

    def _has_text_block(self, node, first, last):
        """Return whether a statement contains a multi-line string, which cannot be moved."""
        for each in syntax.walk(node):
            if isinstance(each, (cst.SimpleString, cst.FormattedString)):
                where = self.get_metadata(PositionProvider, each)
                if first <= where.start.line <= last and where.start.line != where.end.line:
                    return True
        return False


def _broken(lines, width):
    """Return the lines of one statement, broken at brackets or an operator."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    text, comment = _without_comment(lines)
    if text is None:
        return lines
    before = [indent + comment] if comment else []
    if len(indent) + len(text) <= width:
        return before + [indent + text]
    return before + _split(text, indent, width)


def _without_comment(lines):
    """Return (the statement on one line, its comment at the end or empty); (None, "") if comments are inside."""
    stripped = [line.strip() for line in lines]
    code_parts, comment = [], ""
    for at, line in enumerate(stripped):
        place = _comment_start(line)
        if place is not None:
            if at < len(stripped) - 1:
                return None, ""
            line, comment = line[:place].rstrip(), line[place:]
        code_parts.append(line)
    text = code_parts[0]
    for part in code_parts[1:]:
        is_tight = text[-1:] in _OPEN or part[:1] in _CLOSE
        text = (text[:-1] if part[:1] in _CLOSE and text.endswith(",") else text) + ("" if is_tight else " ") + part
    return text, comment


def _comment_start(line):
    """Return where a comment starts in a line, or None."""
    for at, kind in _kinds(line):
        if kind == "#":
            return at
    return None


def _kinds(text):
    """Yield (index, character) of the characters outside of strings; a comment as one ``#``."""
    quote, at = None, 0
    while at < len(text):
        each = text[at]
        if quote:
            if each == "\\":
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = None
        elif each in "\"'":
            quote = text[at : at + 3] if text[at : at + 3] in ('"""', "'''") else each
            at += len(quote) - 1
        else:
            yield at, each
            if each == "#":
                return
        at += 1


def _split(text, indent, width):
    """Return the lines of a statement that is too long for one."""
    outer = _brackets(text)
    equals = text.find(" = ")
    is_plain = equals > 0 and not (outer and outer[-1][1] == len(text) - 1 and _is_call(text, equals + 3, outer[-1]))
    if is_plain and text[equals + 3] not in _OPEN and _fits(text[equals + 3 :], indent, width):
        return [indent + text[: equals + 3] + "(", indent + "    " + text[equals + 3 :], indent + ")"]
    for first, last in sorted(outer, key=lambda pair: pair[0] - pair[1]):
        items = _items(text[first + 1 : last])
        if not items:
            continue
        head, tail = indent + text[: first + 1], indent + text[last:]
        inner = ", ".join(items)
        if _fits(inner, indent, width) and not inner.endswith(","):
            return [head, indent + "    " + inner, tail]
        rows = []
        is_one = len(items) == 1
        for item in items:
            comma = "" if is_one or item.startswith("*") else ","
            fits = _fits(item + ",", indent, width)
            part = [indent + "    " + item + comma] if fits else _split(item + comma, indent + "    ", width)
            rows += part
        return [head] + rows + [tail]
    return [indent + text]


def _is_call(text, start, pair):
    """Return whether the value of an assignment is one call: a name and its brackets."""
    return text[start : pair[0]].replace(".", "").replace("_", "").isalnum()


def _fits(text, indent, width):
    return len(indent) + 4 + len(text) <= width


def _brackets(text):
    """Return (first, last) of the outer brackets of a text."""
    found, depth, first = [], 0, 0
    for at, each in _kinds(text):
        if each in _OPEN:
            first = at if depth == 0 else first
            depth += 1
        elif each in _CLOSE:
            depth -= 1
            found += [(first, at)] if depth == 0 else []
    return found


def _items(text):
    """Return the items of a text between brackets; a comprehension is a single item."""
    parts, depth, start = [], 0, 0
    for at, each in _kinds(text):
        depth += (each in _OPEN) - (each in _CLOSE)
        if each == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def broken_comment(line, width):
    """Return the lines of a comment that is too long for one."""
    indent = line[: len(line) - len(line.lstrip())]
    words = line.strip().lstrip("#").strip()
    return textwrap.wrap(words, width, initial_indent=indent + "# ", subsequent_indent=indent + MORE)
