"""The Python source of a file or notebook, as a syntax tree with places."""

import ast
import bisect
import re
import warnings

from ...errors import AmpError
from ...support.files import read
from ..rules import Broken, SourcePlace, finding
from .code_files import NOTEBOOK, PYTHON, NotANotebook, code_cells, decode
from .flow import scopes
from .names import Names, called, imports_of, inside, string, written_option
from .nodes import nodes_of

_APEX = re.compile(r"\bapex\b", re.IGNORECASE)


class Source:
    """A parsed file.

    Attributes:
        path: the file.
        tree: the syntax tree; for a notebook, of all cells that can be parsed.
        nodes: every node of the tree, parents before children; see ``nodes_of``.
        lines: the source, line by line.
        shell: (place, text) of a notebook's shell lines.
        broken: ``Broken`` records; the tree has what could be parsed.
        torn: (place, line) of what could not be parsed.
        imports: an ``Import`` for each name that it imports.
        names: its ``Names``; ``check`` adds those that are imported from other files.
    """

    def __init__(self, path, data, kind=PYTHON):
        self.path, self.shell, self.broken, self.torn = path, [], [], []
        self.is_notebook = kind == NOTEBOOK
        self._numbers, self._firsts = [], []  # of a notebook's cells: their numbers and first lines
        text = decode(data)
        self.lines = (self._notebook(text) if self.is_notebook else text).split("\n")
        self.tree = self._parsed("\n".join(self.lines), 1) or ast.Module(body=[], type_ignores=[])
        self.nodes = nodes_of(self.tree)
        self.imports, self.names, self._scopes = list(imports_of(self.nodes)), Names(self.nodes), None

    @property
    def scopes(self):
        """The module and each function in it, as a list of (scope, its ``FlowStep`` records)."""
        if self._scopes is None:
            self._scopes = list(scopes(self.nodes))
        return self._scopes

    def calls(self):
        """Yield the calls, parents before children."""
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def problem(self, rule, node, detail=""):
        """Return the ``Problem`` of a rule at a node."""
        return finding(rule, self.place(node.lineno), detail)

    def place(self, line):
        """Return the ``SourcePlace`` of a line of the source."""
        index = bisect.bisect_right(self._firsts, line) - 1
        if index < 0:
            return SourcePlace(self.path, line)
        return SourcePlace(self.path, line - self._firsts[index] + 1, self._numbers[index])

    def position(self, node):
        """Return the (line, column) of a node, in characters; ``ast`` counts the bytes of UTF-8."""
        line, column = self.lines[node.lineno - 1], node.col_offset
        return node.lineno, column if line.isascii() else len(line.encode("utf-8")[:column].decode("utf-8"))

    def _notebook(self, text):
        """Join the cells that can be parsed, and note the shell lines."""
        try:
            cells = code_cells(text)
        except NotANotebook as error:
            self.broken.append(Broken(SourcePlace(self.path, 1), str(error), bool(_APEX.search(text))))
            return ""
        parts, line = [], 1
        for cell in cells:
            self._numbers.append(cell.number)
            self._firsts.append(line)
            self.shell += [(SourcePlace(self.path, at, cell.number), command) for at, command in cell.shell]
            source = cell.python if self._parsed(cell.python, line) else "\n" * cell.python.count("\n")
            parts.append(source)
            line += source.count("\n") + 1
        return "\n".join(parts)

    def _parsed(self, text, first):
        """Return the syntax tree of text that begins at a line of the source; None, and a note, if it has none."""
        try:
            return parse(text)
        except _FAULTS as error:
            reason = "{}: {}".format(type(error).__name__, getattr(error, "msg", None) or error)
            place = self.place(first + (getattr(error, "lineno", None) or 1) - 1)
            self.broken.append(Broken(place, reason, bool(_APEX.search(text))))
            self.torn += [(self.place(at), line) for at, line in enumerate(text.split("\n"), first)]
            return None


#: The errors of ``ast.parse`` for source that is not Python 3: ValueError for a null byte, others for deep nesting.
_FAULTS = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(text):
    """Return the syntax tree of Python source, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def read_source(path):
    """Return the ``Source`` of a Python file; None if it cannot be read."""
    try:
        return Source(path, read(path))
    except AmpError:
        return None


def declared_options(path):
    """Return (option, its default or None if that is no string) of each ``add_argument`` of a script, in its order.

    A file that cannot be read has none.
    """
    source = read_source(path)
    calls = [node for node in source.calls() if called(node) == "add_argument"] if source else []
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    defaults = [next((string(each.value) for each in call.keywords if each.arg == "default"), None) for call in calls]
    return [(option, default) for option, default in zip(map(written_option, calls), defaults) if option]


def is_script(tree):
    """Return whether a module is a script: it has ``if __name__ == "__main__"``, or trains or parses when imported."""
    tests = (node.test for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Compare))
    if any("__main__" in [string(each) for each in [test.left] + test.comparators] for test in tests):
        return True
    return any(called(node) in ("parse_args", "initialize", "backward") for node in inside(tree.body))
