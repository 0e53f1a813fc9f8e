"""Steps after the rewriting: imports, new variables and marks."""

import ast

import libcst as cst

from ..reading.alias_names import alias_names
from ..reading.apex_names_used import uses
from ..reading.source import Source
from . import syntax
from .branches import MARK, MOVED, negated
from .global_variables import DEVICE
from .parsed_script import indentation

_LOADER = '''def {loader}({scaler}, state):
    """Load the state of a GradScaler, or of Apex's amp.state_dict()."""
    if "loss_scaler0" in state:
        old, state = state["loss_scaler0"], {scaler}.state_dict()
        state.update(scale=old["loss_scale"], _growth_tracker=old["unskipped"])
    {scaler}.load_state_dict(state)
'''


_STRINGS = (cst.SimpleString, cst.ConcatenatedString)
#: The beginning of the mark of a use of Apex.
AS_IS = "left as it is: "
#: The attributes that ``amp.initialize`` adds to optimizers. torch does not have them.
_ON_OPTIMIZERS = ("_amp_stash", "_amp_lazy_init", "_lazy_init_maybe_master_weights", "_master_params_to_model_params")
_ON_OPTIMIZERS += ("_prepare_amp_backward", "_post_amp_backward")


class ImportPruner(cst.CSTTransformer):
    """Removes imports of Apex whose names are no longer used, and ``try`` statements that only guarded them."""

    def __init__(self, used):
        super().__init__()
        self._used = used

    def visit_SimpleStatementLine(self, node):
        """Enter only imports."""
        return any(isinstance(each, (cst.Import, cst.ImportFrom)) for each in node.body)

    def leave_ImportFrom(self, original_node, updated_node):
        """Keep the names that are used."""
        module = syntax.name_of(original_node.module) if original_node.module and not original_node.relative else None
        if module is None or not alias_names().is_apex(module):
            return updated_node
        if isinstance(original_node.names, cst.ImportStar):
            kept = set(alias_names().modules.get(module, ())) & self._used
            return updated_node if kept else cst.RemoveFromParent()
        return self._kept(updated_node)

    def leave_Import(self, original_node, updated_node):
        """Keep the names that are used."""
        is_apex = [alias_names().is_apex(syntax.name_of(each.name)) for each in original_node.names]
        return self._kept(updated_node) if all(is_apex) else updated_node

    def _kept(self, node):
        return syntax.with_names(node, [each for each in node.names if imported_name(each) in self._used])

    def leave_Try(self, original_node, updated_node):
        """Remove a ``try`` without a body, together with its ``except`` for a missing Apex."""
        body = [each for each in updated_node.body.body if syntax.text(each).strip() not in ("", "pass", MOVED)]
        had_imports = any(isinstance(each, (cst.Import, cst.ImportFrom)) for each in syntax.walk(original_node.body))
        if not body:
            return cst.RemoveFromParent() if had_imports or len(updated_node.body.body) else updated_node
        is_flag = all(_is_constant(each) for each in body)  # as in: APEX_IS_THERE = True
        if had_imports and is_flag and len(body) < len(original_node.body.body) and not updated_node.finalbody:
            lines = [*updated_node.leading_lines, *(each for each in body[0].leading_lines if each.comment is not None)]
            return cst.FlattenSentinel([body[0].with_changes(leading_lines=lines)] + body[1:])
        return updated_node

    def leave_If(self, original_node, updated_node):
        """Remove an ``if`` whose statements are no longer needed."""
        if not _is_moved(updated_node.body):
            return updated_node
        if updated_node.orelse is None:
            return cst.RemoveFromParent()
        if isinstance(updated_node.orelse, cst.If):
            return updated_node.orelse.with_changes(leading_lines=updated_node.leading_lines)
        test = cst.parse_expression(negated(updated_node.test))
        return updated_node.with_changes(test=test, body=updated_node.orelse.body, orelse=None)

    def leave_Else(self, original_node, updated_node):
        """Remove an ``else`` whose statements are no longer needed."""
        return cst.RemoveFromParent() if _is_moved(updated_node.body) else updated_node

    def leave_IndentedBlock(self, original_node, updated_node):
        """Fix a block that has lost its first statement, or its only one."""
        body = [each for each in updated_node.body if not _is_placeholder(each)] or list(updated_node.body)
        if len(body) == len(original_node.body):
            return updated_node
        if body and not isinstance(original_node.body[0], type(body[0])) or (body and body[0].leading_lines):
            lines = [line for line in body[0].leading_lines if line.comment is not None]
            body = [body[0].with_changes(leading_lines=lines), *body[1:]]
        return updated_node.with_changes(body=body or syntax.statements("pass\n"))


def _is_placeholder(statement):
    return syntax.text(statement).strip() == MOVED


def _is_moved(block):
    """Return whether all statements of a block have been removed."""
    statements = getattr(block, "body", ())
    return bool(statements) and all(_is_placeholder(each) for each in statements)


def _is_constant(statement):
    """Return whether a statement sets a variable to a constant."""
    node = syntax.first_of(statement, cst.Assign)
    return node is not None and len(statement.body) == 1 and isinstance(node.value, cst.Name)


def imported_name(alias):
    """Return the name that an import binds."""
    return syntax.text(alias.asname.name) if alias.asname else syntax.name_of(alias.name).partition(".")[0]


def prune_imports(source):
    """Return the source without the imports of Apex that it no longer needs."""
    pruned = cst.parse_module(source).visit(ImportPruner(syntax.read_names(source))).code
    return pruned.replace(MOVED, "pass")  # in blocks that have lost all of their statements


def add_header(source, names, loads_state, has_device, shared):
    """Return the source with the import of torch if missing, and with what all of its functions need.

    Args:
        names: ``NewNames``.
        loads_state: whether a function is needed that loads the scaler's state.
        has_device: whether the variable for the type of the device is set after the imports.
        shared: the variables that a function sets for others; until then, autocast is disabled.
    """
    body = cst.parse_module(source).body
    known = set().union(*map(_imported, body[: _after_imports(body)]))
    lines = [f"{names.device} = {DEVICE}\n"] * has_device + [f"{names.flag} = False\n"] * (names.flag in shared)
    lines += [f"{names.dtype} = torch.float16\n"] * (names.dtype in shared)
    pieces = ["".join(lines)] * bool(lines)
    if "torch" not in known and (lines or "torch" in syntax.read_names(source)):
        pieces.insert(0, "import torch\n")
    return with_statements(source, pieces + ([_LOADER.format(**names._asdict())] if loads_state else []))


def with_statements(source, pieces):
    """Return the source with statements after the first run of imports."""
    module, added = cst.parse_module(source), []
    at = _after_imports(module.body)
    for piece in pieces:
        before = added[-1] if added else module.body[at - 1] if at else None
        is_next = before is None or (syntax.is_import(before) and piece.startswith(("import", "from")))
        blank = [cst.EmptyLine(indent=False)] * (2 if piece.startswith("def") else not is_next)
        first, *others = syntax.statements(piece)
        added += [first.with_changes(leading_lines=blank), *others]
    following = list(module.body[at:])
    if following and added and not syntax.is_import(added[-1]):
        lines = following[0].leading_lines
        blank = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
        missing = 2 - blank if pieces[-1].startswith("def") else 0 if lines else 1
        following[0] = following[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)] * missing + list(lines))
    return module.with_changes(body=[*module.body[:at], *added, *following]).code


def _after_imports(body):
    """Return the index after the run of imports that has torch, or after the first run, or after the docstring."""
    imports = [
        at for at, each in enumerate(body) if syntax.is_import(each) or (isinstance(each, cst.Try) and _imported(each))
    ]
    found = [at for at in imports if "torch" in _imported(body[at])] or imports
    if not found:
        return int(bool(body) and isinstance(getattr(syntax.first_of(body[0], cst.Expr), "value", None), _STRINGS))
    return next(at for at in range(found[0] + 1, len(body) + 1) if at not in imports)


def _imported(statement):
    """Return the names that a statement imports."""
    nodes = [each for each in syntax.walk(statement) if isinstance(each, (cst.Import, cst.ImportFrom))]
    named = [node for node in nodes if not isinstance(node.names, cst.ImportStar)]
    return {imported_name(alias) for node in named for alias in node.names}


def _names_of_amp_on_optimizers(parsed):
    """Yield (line, name) of the attributes that ``amp.initialize`` adds to optimizers."""
    for node in parsed.nodes:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(name, str) and name in _ON_OPTIMIZERS:
            yield node.lineno, name


def mark_rest(source):
    """Return (the new source with a comment above each statement that still uses Apex, {name: its lines there})."""
    parsed = Source("script.py", source.encode("utf-8"))
    found = uses(parsed)
    lines, rest = source.split("\n"), {}
    starts = sorted(node.lineno for node in parsed.nodes if isinstance(node, ast.stmt))
    lines_and_names = [(use.place.line, use.name) for use in found] + list(_names_of_amp_on_optimizers(parsed))
    for at, name in lines_and_names:
        start = max(line for line in starts if line <= at)
        rest.setdefault(start, []).append(name)
    found, added = {}, 0
    for start in sorted(rest):
        index, names = start - 1 + added, sorted(set(rest[start]))
        if not lines[index - 1].strip().startswith(MARK):
            lines.insert(index, indentation(lines[index]) + MARK + AS_IS + ", ".join(names))
            added += 1
        for name in names:
            found.setdefault(name, []).append(start + added)
    return "\n".join(lines), found
