"""``migrate --to-level``: write an opt level into a script without Apex, with ampcompat's ``amp``."""

import ast
import functools

import libcst as cst
from libcst import matchers

from ...errors import AmpError
from . import syntax
from .imports_and_marks import imported_name, with_statements
from .level_plan import LevelPlan
from .parsed_script import Migration, rewritten

_LOSS_SCALE = "checkpoints have no loss scale: save and load amp.state_dict() too, or resume with the initial scale"


def write_level(source, level, path="script.py"):
    """Return the ``Migration`` of a script without Apex to one that trains at a level; nothing is left by hand.

    ``amp.initialize`` is called after the optimizers are created, and each ``loss.backward()`` is put into an
    ``amp.scale_loss`` block. The script's own autocast regions and its ``GradScaler`` are removed.

    Args:
        source: the script's source.
        level: "O0" to "O5".
        path: its name, for messages.

    Raises:
        AmpError: it cannot be rewritten reliably; the message says why, and at which line.
    """
    return rewritten(source, path, functools.partial(_written, level))


def _written(level, script):
    split, path, was = script.split, script.path, script.old_lines
    plan = LevelPlan(split, level, path, was)
    writer = _LevelWriter(plan, level)
    new = writer.rewrite(split)
    if not writer.has_initialized:
        raise AmpError(f"{path}: no place for amp.initialize was found; call it by hand, or use run --opt-level.")
    new = _without_names(new, syntax.read_names(split) - syntax.read_names(new.code))
    name = "amp" if plan.amp == "amp" else f"amp as {plan.amp}"
    text = with_statements(new.code, [f"from ampcompat import {name}\n"])
    notes = [(was[line], note) for line, note in writer.notes]
    if level in ("O1", "O2") and "torch.save" in script.source and not plan.torch_amp.states:
        notes.append((0, _LOSS_SCALE))
    return Migration(script.joined(text), sorted(set(notes)), [])


class _LevelWriter(syntax.PlacedTransformer):
    """Applies a ``LevelPlan``.

    Attributes:
        notes: (line, what changes).
        has_initialized: whether ``amp.initialize`` was written.
    """

    def __init__(self, plan, level):
        super().__init__()
        self._plan, self._level, self.notes, self.has_initialized = plan, level, [], False
        self._wrapper = []  # the statement that wraps the model, until it is written again after amp.initialize

    def _line(self, node):
        return self.place(node)[0]

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Replace or remove a statement, and add the call of ``amp.initialize`` next to it."""
        line, use = self._line(original_node), self._plan.torch_amp
        if line in self._plan.backward:
            return self._beside(line, [self._scaled(original_node, updated_node, line)])
        if line in use.removed:
            self.notes.append((line, f"removed: {syntax.text(original_node.body[0]).strip()}"))
            return self._beside(line, [])
        if line in use.steps:
            body = syntax.statements(f"{use.steps[line]}.step()\n")[0].body
            return self._beside(line, [updated_node.with_changes(body=body)])
        return self._beside(line, [updated_node])

    def _compound(self, original_node, updated_node):
        return self._beside(self._line(original_node), [updated_node])

    leave_For = leave_While = leave_Try = leave_FunctionDef = leave_ClassDef = _compound

    def _beside(self, line, statements):
        """Return statements with ``amp.initialize`` before or after them, if it belongs to their line."""
        if self._plan.moved is not None and line == self._plan.moved.statement.lineno:
            self.notes.append((line, "moved: the model is wrapped after amp.initialize"))
            self._wrapper, statements = statements, []
        if line == self._plan.before:
            statements = [self._initialize()] + statements
        elif line == self._plan.after:
            statements += [self._initialize()] + self._wrapper
        if len(statements) == 1:  # an ``elif`` cannot become several
            return statements[0]
        return cst.FlattenSentinel(statements) if statements else cst.RemoveFromParent()

    def _initialize(self):
        plan, self.has_initialized = self._plan, True
        given = [", ".join(names) for names in (plan.models, plan.optimizers)]
        given = [f"[{each}]" if "," in each else each for each in given]
        options = "".join(f", {name}={_source(value)}" for name, value in plan.torch_amp.options)
        options += ", allow_half_model=True" if plan.allows_half else ""
        call = '{}.initialize({}, {}, opt_level="{}"{})\n'.format(plan.amp, *given, self._level, options)
        return syntax.statements(call)[0]

    def _scaled(self, original, updated, line):
        """Return ``with amp.scale_loss(loss, optimizer) as scaled_loss:`` with the backward pass in it."""
        plan, call = self._plan, updated.body[0].value
        loss = call.func.value
        if line in plan.torch_amp.losses:
            loss = loss.args[0].value
        names = plan.backward[line]
        optimizers = names[0] if len(names) == 1 else "[{}]".format(", ".join(names))
        head = f"with {plan.amp}.scale_loss({syntax.text(_bare(loss))}, {optimizers}) as {plan.scaled}:\n    pass\n"
        block = syntax.statements(head)[0]
        scaled = call.with_changes(func=call.func.with_changes(value=cst.Name(plan.scaled)))
        inner = cst.SimpleStatementLine(body=[cst.Expr(scaled)], trailing_whitespace=updated.trailing_whitespace)
        body = block.body.with_changes(body=[inner])
        return block.with_changes(body=body, leading_lines=updated.leading_lines)

    def leave_With(self, original_node, updated_node):
        """Remove the script's autocast regions."""
        line = self._line(original_node)
        going = self._plan.torch_amp.unwrapped.get(line, ())
        kept = [item for at, item in enumerate(updated_node.items) if at not in going]
        if not going:
            return self._beside(line, [updated_node])
        self.notes.append((line, "removed: the autocast region; the level casts"))
        return self._beside(line, syntax.with_items(updated_node, kept))

    def leave_Decorator(self, original_node, updated_node):
        """Remove the script's autocast decorators."""
        return cst.RemoveFromParent() if self._line(original_node) in self._plan.torch_amp.undecorated else updated_node

    def leave_IndentedBlock(self, original_node, updated_node):
        """Put ``pass`` into blocks that have lost all statements."""
        body = updated_node.body or syntax.statements("pass\n")
        return updated_node.with_changes(body=body)

    def leave_If(self, original_node, updated_node):
        """Remove an ``if`` whose only statements were removed."""
        had = [syntax.text(each).strip() for each in original_node.body.body]
        is_empty = [syntax.text(each).strip() for each in updated_node.body.body] == ["pass"] != had
        return self._beside(
            self._line(original_node), [] if is_empty and updated_node.orelse is None else [updated_node]
        )

    def leave_Name(self, original_node, updated_node):
        """Use the model instead of its wrapper if the wrapper is created later."""
        renamed = {} if self._plan.moved is None else self._plan.moved.renamed
        name = renamed.get(self.place(original_node))
        return updated_node if name is None else updated_node.with_changes(value=name)

    def leave_Call(self, original_node, updated_node):
        """Replace ``scaler.state_dict()`` and ``scaler.load_state_dict(state)``."""
        if self.place(original_node) not in self._plan.torch_amp.states or not _is_state_call(updated_node):
            return updated_node
        return updated_node.with_changes(func=updated_node.func.with_changes(value=cst.Name(self._plan.amp)))


def _without_names(module, gone):
    """Return a module without some names in ``from … import …``."""

    def kept(node, _):
        names = [each for each in node.names if imported_name(each) not in gone]
        return node if len(names) == len(node.names) else syntax.with_names(node, names)

    return matchers.replace(module, matchers.ImportFrom(names=[matchers.ZeroOrMore()]), kept)


def _is_state_call(call):
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in ("state_dict", "load_state_dict")


def _bare(expression):
    """Return an expression without its enclosing parentheses, which an argument does not need."""
    return expression.with_changes(lpar=(), rpar=()) if getattr(expression, "lpar", ()) else expression


def _source(node):
    """Return the source of an ``ast`` node: numbers, names and expressions of them."""
    return ast.unparse(node) if hasattr(ast, "unparse") else str(ast.literal_eval(node))
