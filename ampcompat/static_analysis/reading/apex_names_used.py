"""Every use of a name of Apex in a file, and how it is supported."""

import ast
import re

from ..rules import REFUSED, Use
from .alias_names import alias_names
from .calls import ends_script
from .names import Names, dotted, imported_by_call, imports_of

_IMPORTS = (ast.Import, ast.ImportFrom)


def uses(source):
    """Return the uses of Apex's names in a ``Source``, by line, once per name and line."""
    names = list(_names(source.nodes, source.names))
    fallbacks = _Fallbacks(source.nodes, names)
    found = {}
    for node, name in names:
        key = (node.lineno, name)
        if key not in found:
            found[key] = use(source.place(node.lineno), name, fallbacks.of(node, name))
    for place, name in _torn_names(source.torn):
        found.setdefault((place, name), use(place, name))
    return sorted(found.values(), key=lambda each: each.place.order)


def use(place, name, fallback=""):
    """Return the ``Use`` of a full name at a place."""
    verdict = alias_names().verdict(name)
    return Use(place, name, verdict.becomes, verdict.advice, fallback)


def _names(nodes, names):
    """Yield (node, full name) of imports, the longest attribute chains, and names in strings."""
    inner = set()
    for node in nodes:  # parents come before their children
        if isinstance(node, _IMPORTS):
            for each in imports_of([node]):
                if not each.level and alias_names().is_apex(each.module):
                    yield node, each.module if each.name == "*" else each.full_name
        elif isinstance(node, ast.Call) and imported_by_call(node):
            yield node, imported_by_call(node)
        elif isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
            inner.update(_chain(node))
            full_name = names.of_apex(node) if isinstance(node.ctx, ast.Load) else None
            if full_name:
                yield node, full_name


def _chain(node):
    while isinstance(node, ast.Attribute):
        node = node.value
        yield id(node)


class _Fallbacks:
    """What a script can do without.

    Args:
        nodes: all nodes of the syntax tree, parents first.
        names: (node, full name) of the uses of Apex.
    """

    def __init__(self, nodes, names):
        self._nodes = {}  # id -> ``try`` or ``function``, as in ``Use.fallback``
        for node in nodes:
            if isinstance(node, ast.Try) and any(_handles_imports(each) for each in node.handlers):
                self._add(node.body, "try")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._add(node.body, "function")
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in (dotted(node.test) or ""):
                self._add(node.body, "try")
        #: Full names whose import fails, and is handled: other uses are reached only if it succeeds.
        self._failing = [
            name + "."
            for node, name in names
            if isinstance(node, _IMPORTS)
            and self._nodes.get(id(node)) == "try"
            and alias_names().verdict(name).becomes == REFUSED
        ]

    def of(self, node, name):
        """Return the ``Use.fallback`` of a full name at a node."""
        if not isinstance(node, _IMPORTS) and (name + ".").startswith(tuple(self._failing)):
            return "try"
        return self._nodes.get(id(node), "")

    def _add(self, body, kind):
        for inner in (inner for statement in body for inner in ast.walk(statement)):
            if self._nodes.get(id(inner)) != "try":
                self._nodes[id(inner)] = kind


def _handles_imports(handler):
    """Return whether an ``except`` catches ImportError and does not end the script."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"Exception" if kind is None else (dotted(kind) or "").rpartition(".")[2] for kind in kinds}
    ends = any(map(ends_script, handler.body))
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}) and not ends


_IMPORT = re.compile(r"(?:>>> )?((?:from\s+[\w.]+\s+)?import\s[\w.,* ()]+)$")


def _torn_names(lines):
    """Yield (place, full name) from lines that could not be parsed as a whole: each is parsed separately."""
    bound = {}
    for _, line in lines:
        match = _IMPORT.match(line.partition("#")[0].strip())
        if match:
            try:
                bound.update(Names(ast.parse(match.group(1)).body).apex)
            except SyntaxError:
                continue
    pattern = re.compile(r"(?<![\w.])({})((?:\.\w+)*)".format("|".join(sorted(bound) or ["(?!)"])))
    for place, line in lines:
        for match in pattern.finditer(line.partition("#")[0]):
            yield place, bound[match.group(1)] + match.group(2)
