"""Small helpers for LibCST: source to nodes and back, names in code."""

import ast
import dataclasses
import functools
import re

import libcst as cst
from libcst import matchers
from libcst.helpers import get_full_name_for_node
from libcst.metadata import MetadataWrapper, PositionProvider

COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_LAYOUT = re.compile("whitespace|lines|comma|[lr]par|brac|header|footer|semicolon|dot|equal|indent")
COMPOUND = (cst.FunctionDef, cst.ClassDef, cst.If, cst.For, cst.While, cst.With, cst.Try)


class PlacedTransformer(cst.CSTTransformer):
    """A transformer that is told what to change by the places of nodes, which are those of ``ast``."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def place(self, node):
        """Return the (line, column) of a node of the original module."""
        start = self.get_metadata(PositionProvider, node).start
        return start.line, start.column

    def rewrite(self, source):
        """Return the new module of a source."""
        return MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True).visit(self)


def text(node):
    """Return the source of an expression or statement."""
    return cst.Module(body=[]).code_for_node(node)


def operand(node):
    """Return the source of an expression, in parentheses if neighboring operators could bind more tightly."""
    source = text(node)
    loose = (cst.IfExp, cst.BooleanOperation, cst.Comparison, cst.UnaryOperation, cst.BinaryOperation, cst.Lambda)
    return f"({source})" if isinstance(node, loose) and not node.lpar else source


def bare_text(node):
    """Return the source of a tuple without its parentheses; of another expression its source."""
    return text(node.with_changes(lpar=(), rpar=())) if isinstance(node, cst.Tuple) else text(node)


def statements(source):
    """Return the statements of a piece of source; its blank lines stay empty at any indentation."""
    module = cst.parse_module(source)
    body = list(module.body)
    lines = [[*module.header, *body[0].leading_lines]] + [list(each.leading_lines) for each in body[1:]]
    return [each.with_changes(leading_lines=_empty(before)) for each, before in zip(body, lines)]


def _empty(lines):
    return [line if line.comment is not None else cst.EmptyLine(indent=False) for line in lines]


def name_of(node):
    """Return ``a.b`` for such an expression, otherwise None; a call has no name."""
    return None if isinstance(node, cst.Call) else get_full_name_for_node(node)


@functools.lru_cache(None)
def _code_fields(kind):
    """Return the names of the fields of a class of nodes that have code, not whitespace, commas or parentheses."""
    return [each.name for each in dataclasses.fields(kind) if not _LAYOUT.search(each.name)]


def children(node):
    """Return the nodes directly below a node, without its layout. ``node.children`` copies them, which takes long."""
    values = [getattr(node, name) for name in _code_fields(type(node))]
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in values]
    return [each for value in lists for each in value if isinstance(each, cst.CSTNode)]


def walk(node):
    """Yield a node and all nodes below it, without their layout."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


def calls(node):
    """Yield the calls in a node."""
    return (each for each in walk(node) if isinstance(each, cst.Call))


def argument(call, position, keyword):
    """Return the value of an argument by position or keyword, or None."""
    positional = [each for each in call.args if each.keyword is None and not each.star]
    for each in call.args:
        if each.keyword is not None and each.keyword.value == keyword:
            return each.value
    return positional[position].value if position < len(positional) else None


def loaded_names(node):
    """Return the dotted names that occur in a node: ``self.loss`` gives ``self.loss``, ``self`` is left out."""
    found = set()
    for each in walk(node):
        if isinstance(each, (cst.Name, cst.Attribute)):
            name = name_of(each)
            if name and name != "self":
                found.add(name)
    return found


def assigned_names(node):
    """Return the dotted names that a statement assigns, at any depth."""
    targets = []
    for each in walk(node):
        if isinstance(each, cst.Assign):
            targets += [target.target for target in each.targets]
        elif isinstance(each, (cst.AugAssign, cst.AnnAssign)):
            targets.append(each.target)
    names = set()
    for target in targets:
        elements = [each.value for each in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
        names |= {name_of(_base(each)) for each in elements}
    return names - {None}


def _base(node):
    """Return ``losses`` of ``losses["main"]``."""
    return _base(node.value) if isinstance(node, cst.Subscript) else node


def read_names(source):
    """Return the names that source reads, not those that are only set, as in ``amp = None``."""
    names = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def first_of(statement, *kinds):
    """Return the first small statement of a line, if it is one of some kinds, otherwise None."""
    node = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return node if isinstance(node, kinds) else None


def is_import(statement):
    """Return whether a statement is an import."""
    return first_of(statement, cst.Import, cst.ImportFrom) is not None


def listed(elements):
    """Return elements, the last without a comma."""
    last = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in elements[-1:]]
    return [*elements[:-1], *last]


def with_names(node, kept):
    """Return what replaces an import that keeps only some of its names."""
    return node.with_changes(names=listed(kept)) if kept else cst.RemoveFromParent()


def with_items(node, kept):
    """Return the statements that replace a ``with`` that keeps only some of its items."""
    if kept:
        return [node.with_changes(items=listed(kept))]
    first, *others = node.body.body
    return [first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines]), *others]


def in_place_of(statement, source):
    """Return statements from source, with the comments and blank lines above the statement that they replace."""
    new, *rest = statements(source)
    return [new.with_changes(leading_lines=statement.leading_lines)] + rest


def first(node, name):
    """Return the first node with this dotted name."""
    return next(each for each in walk(node) if name_of(each) == name and isinstance(each, cst.BaseExpression))


def renamed(node, old, new):
    """Return a node with a variable replaced by another, or by an expression."""
    return matchers.replace(node, matchers.Name(old), cst.parse_expression(new))


class _Unwrapping(cst.CSTTransformer):
    def __init__(self, context):
        super().__init__()
        self._context = context

    def visit_SimpleStatementLine(self, node):
        return False

    def leave_With(self, original_node, updated_node):
        kept = [each for each in updated_node.items if text(each.item) != self._context]
        same = len(kept) == len(updated_node.items)
        return updated_node if same else cst.FlattenSentinel(with_items(updated_node, kept))


def without_with(body, context):
    """Return statements with the ``with`` statements of a context unwrapped."""
    return list(cst.Module(body=body).visit(_Unwrapping(context)).body)
