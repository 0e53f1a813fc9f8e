"""What surrounds the rewriting: one statement per line before it; imports, new variables and marks after it."""

import ast

import libcst as cst

from ..check.alias_names import alias_names
from ..check.bindings import Bindings
from ..check.files import PYTHON
from ..check.source import Source
from ..check.uses import uses
from . import code
from .rewrite import MARK

_HEADER = """
{device} = "cuda" if torch.cuda.is_available() else "cpu"
{flag} = False  # set below, where the models and optimizers are ready
{scaler} = torch.amp.GradScaler({device}, enabled=False)
"""

_LOADER = '''

def {loader}(state):
    """Load what a GradScaler's state_dict() returned, or Apex's amp.state_dict() in older checkpoints."""
    if "loss_scaler0" in state:
        saved = state["loss_scaler0"]
        state = dict({scaler}.state_dict(), scale=saved["loss_scale"], _growth_tracker=saved["unskipped"])
    {scaler}.load_state_dict(state)
'''


#: The attributes that ``amp.initialize`` adds to optimizers. torch has none of them.
_ON_OPTIMIZERS = ("_amp_stash", "_amp_lazy_init", "_lazy_init_maybe_master_weights", "_master_params_to_model_params")
_ON_OPTIMIZERS += ("_prepare_amp_backward", "_post_amp_backward")


class OneStatementPerLine(cst.CSTTransformer):
    """Splits ``a; b``, ``if x: a`` and ``with a, b:``, so that a statement can become several."""

    def leave_With(self, original_node, updated_node):
        """Nest the items of a ``with`` that has a ``scale_loss`` among others."""
        items = [item.with_changes(comma=cst.MaybeSentinel.DEFAULT) for item in updated_node.items]
        if len(items) == 1 or not any("scale_loss" in code.text(item.item) for item in items):
            return updated_node
        body = updated_node.body
        for item in reversed(items[1:]):
            body = cst.IndentedBlock(body=[cst.With(items=[item], body=body)])
        return updated_node.with_changes(items=items[:1], body=body)

    def leave_SimpleStatementSuite(self, original_node, updated_node):
        """Put the statements of ``if x: a`` on lines of their own, where one is a call."""
        if not any(True for _ in code.calls(original_node)):
            return updated_node
        return cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[_alone(each)]) for each in updated_node.body])

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Put the statements of ``a; b`` on lines of their own, where one is a call."""
        if len(original_node.body) == 1 or not any(True for _ in code.calls(original_node)):
            return updated_node
        lines = [cst.SimpleStatementLine(body=[_alone(each)]) for each in updated_node.body]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel(lines)


def _alone(statement):
    return statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)


class ImportPruner(cst.CSTTransformer):
    """Removes imports of Apex whose names are no longer used, and ``try`` statements that only guarded them."""

    def __init__(self, used):
        super().__init__()
        self._used = used

    def leave_ImportFrom(self, original_node, updated_node):
        """Keep the names that are used."""
        module = code.name_of(original_node.module) if original_node.module and not original_node.relative else None
        if module is None or not alias_names().is_apex(module):
            return updated_node
        if isinstance(original_node.names, cst.ImportStar):
            kept = set(alias_names().modules.get(module, ())) & self._used
            return updated_node if kept else cst.RemoveFromParent()
        return self._kept(updated_node)

    def leave_Import(self, original_node, updated_node):
        """Keep the names that are used."""
        is_apex = [alias_names().is_apex(code.name_of(each.name)) for each in original_node.names]
        return self._kept(updated_node) if all(is_apex) else updated_node

    def _kept(self, node):
        kept = [each for each in node.names if (_local(each)) in self._used]
        if not kept:
            return cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(names=kept)

    def leave_Try(self, original_node, updated_node):
        """Remove a ``try`` without a body; what its ``except`` does for a missing Apex goes with it."""
        had_imports = any(isinstance(each, (cst.Import, cst.ImportFrom)) for each in code.walk(original_node.body))
        is_empty = code.text(updated_node.body).strip() in ("", "pass")
        return cst.RemoveFromParent() if had_imports and is_empty else updated_node

    def leave_IndentedBlock(self, original_node, updated_node):
        """Mend a block that has lost its first statement, or its only one."""
        body = updated_node.body
        if len(body) == len(original_node.body):
            return updated_node
        if body and not isinstance(original_node.body[0], type(body[0])) or (body and body[0].leading_lines):
            lines = [line for line in body[0].leading_lines if line.comment is not None]
            body = [body[0].with_changes(leading_lines=lines), *body[1:]]
        return updated_node.with_changes(body=body or code.statements("pass\n"))


def _local(alias):
    """Return the name that an import binds."""
    return code.text(alias.asname.name) if alias.asname else code.name_of(alias.name).partition(".")[0]


def prune_imports(source):
    """Return the source without the imports of Apex that it no longer needs."""
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    return cst.parse_module(source).visit(ImportPruner(used)).code


def add_header(source, names, loads_state):
    """Return the source with the new variables after its imports, and ``import torch`` if it has none."""
    module = cst.parse_module(source)
    header = _HEADER + (_LOADER if loads_state else "")
    at = _after_imports(module.body)
    added = code.statements(header.format(**names._asdict()))
    if not any("torch" in _imported(each) for each in module.body[:at]):
        added[0] = added[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        added = code.statements("import torch\n") + added
    added[0] = added[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    following = list(module.body[at:])
    if following:
        lines = following[0].leading_lines
        blank = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
        missing = 2 - blank if loads_state else 0 if lines else 1
        following[0] = following[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)] * missing + list(lines))
    return module.with_changes(body=[*module.body[:at], *added, *following]).code


def _after_imports(body):
    """Return the index after the last import that precedes functions, classes and calls."""
    last = 0
    for index, statement in enumerate(body):
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
        simple = isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], (cst.Import, cst.ImportFrom)
        )
        guarded = isinstance(statement, cst.Try) and any(
            isinstance(each, (cst.Import, cst.ImportFrom)) for each in code.walk(statement)
        )
        is_docstring = (
            index == 0 and isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Expr)
        )
        last = index + 1 if simple or guarded or is_docstring else last
    return last


def _imported(statement):
    """Return the names that a statement imports as modules."""
    nodes = [each for each in code.walk(statement) if isinstance(each, cst.Import)]
    return {_local(alias) for node in nodes for alias in node.names}


def _names_of_amp_on_optimizers(parsed):
    """Yield (line, name) of the attributes that ``amp.initialize`` adds to optimizers."""
    for node in parsed.nodes:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(name, str) and name in _ON_OPTIMIZERS:
            yield node.lineno, name


def mark_rest(source):
    """Return (source with a comment above each statement that still uses Apex, {name: its lines there})."""
    parsed = Source("script.py", source.encode("utf-8"), PYTHON)
    found = uses(parsed, Bindings(parsed.nodes))
    lines, rest = source.split("\n"), {}
    starts = sorted(node.lineno for node in parsed.nodes if isinstance(node, ast.stmt))
    lines_and_names = [(use.place.line, use.name) for use in found] + list(_names_of_amp_on_optimizers(parsed))
    for at, name in lines_and_names:
        start = max(line for line in starts if line <= at)
        rest.setdefault(start, []).append(name)
    found, added = {}, 0
    for start in sorted(rest):
        index, names = start - 1 + added, sorted(set(rest[start]))
        indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        if not lines[index - 1].strip().startswith(MARK):
            lines.insert(index, "{}{}left as it is: {}".format(indent, MARK, ", ".join(names)))
            added += 1
        for name in names:
            found.setdefault(name, []).append(start + added)
    return "\n".join(lines), found
