"""The rewriting itself: calls one by one, statements block by block."""

import libcst as cst
from libcst.metadata import PositionProvider

from ..check.backward_rules import SCALE_LOSS
from ..check.levels import INITIALIZE
from . import code
from .replacements import replaced
from .setup_code import Setup

MARK = "# ampcompat migrate: "
UNKNOWN_STEP = "write scaler.step(...) with the optimizer that steps here, and scaler.update() after the last one"
UNCOVERED = "the forward pass of a loss in this block is elsewhere: put it under torch.autocast"


class Rewriter(cst.CSTTransformer):
    """Rewrites a script, given its ``Plan``.

    Attributes:
        notes: (line, text) of what changes.
        left: (line, text) of what could not be rewritten.
        loads_state: whether ``amp.load_state_dict`` was called.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, plan):
        super().__init__()
        self.plan, self.names = plan, plan.names
        self.notes, self.left, self.loads_state = [], [], False
        self._dtype = "torch.float16"
        self._covered = set()  # scale_loss statements whose forward pass is under autocast
        self._setting_up = []  # for each enclosing function: does it call amp.initialize

    # -- calls ---------------------------------------------------------------------------------------------------------

    def visit_Module(self, node):
        """Find the dtype of autocast, which functions above the call of ``amp.initialize`` need too."""
        calls = [call for call in code.calls(node) if self._full_name(call.func) in INITIALIZE]
        self._dtype = Setup(calls[0], self.names).dtype if calls else self._dtype

    def _full_name(self, node):
        return self.plan.bindings.resolve(code.name_of(node))

    def leave_Call(self, original_node, updated_node):
        """Replace the calls that torch has too."""
        full_name = self._full_name(original_node.func)
        if full_name is None:
            return updated_node
        if full_name == "apex.amp.master_params":
            source = 'p for group in {}.param_groups for p in group["params"]'
            return code.expression("[{}]".format(source.format(code.text(updated_node.args[0].value))))
        if full_name == "apex.amp.state_dict":
            return code.expression(self.names.scaler + ".state_dict()")
        if full_name == "apex.amp.load_state_dict":
            self.loads_state = True
            return updated_node.with_changes(func=code.expression(self.names.loader))
        if full_name in ("apex.amp.disable_casts", "apex.amp.handle.disable_casts"):
            return code.expression("torch.autocast({}, enabled=False)".format(self.names.device))
        return replaced(updated_node, full_name) or updated_node

    # -- functions and contexts ----------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node):
        """Note that a function begins."""
        self._setting_up.append(False)

    def leave_FunctionDef(self, original_node, updated_node):
        """Declare the variables global where they are set; cast in functions that evaluate."""
        updated_node = self._marked_if_uncovered(original_node.body, updated_node)
        if self._setting_up.pop():
            declaration = code.statements("global {}, {}\n".format(self.names.flag, self.names.scaler))
            body = list(updated_node.body.body)
            first = 1 if original_node.get_docstring() is not None else 0
            body[first:first] = declaration
            updated_node = updated_node.with_changes(body=updated_node.body.with_changes(body=body))
        marks = [mark for mark in original_node.decorators if _turns_gradients_off(mark.decorator)]
        if marks and self._calls_a_model(original_node.body):
            body, first = list(updated_node.body.body), 1 if original_node.get_docstring() is not None else 0
            body[first:] = [self._under_autocast(body[first:])]
            updated_node = updated_node.with_changes(body=updated_node.body.with_changes(body=body))
        return updated_node

    def leave_With(self, original_node, updated_node):
        """Cast in ``with torch.no_grad()`` blocks that call a model."""
        off = any(_turns_gradients_off(item.item) for item in original_node.items)
        if not off or not self._calls_a_model(original_node.body):
            return updated_node
        items = [item.with_changes(comma=cst.MaybeSentinel.DEFAULT) for item in updated_node.items]
        return updated_node.with_changes(items=items + [cst.WithItem(item=code.expression(self._autocast()))])

    def _calls_a_model(self, node):
        return any(self.plan.is_model(code.name_of(call.func)) for call in code.calls(node))

    def _autocast(self):
        return "torch.autocast({}, dtype={}, enabled={})".format(self.names.device, self._dtype, self.names.flag)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def leave_IndentedBlock(self, original_node, updated_node):
        """Rewrite the statements of a block."""
        return updated_node.with_changes(body=self._block(original_node.body, updated_node.body))

    def leave_Module(self, original_node, updated_node):
        """Rewrite the statements of the module."""
        body = self._block(original_node.body, updated_node.body)
        simple = [each for each in original_node.body if not isinstance(each, (cst.FunctionDef, cst.ClassDef))]
        if simple and body:
            body[-1] = self._marked_if_uncovered(cst.Module(body=simple), body[-1])
        return updated_node.with_changes(body=body)

    def _marked_if_uncovered(self, block, statement):
        """Mark a statement if a ``scale_loss`` in a block has a forward pass that was not found."""
        missing = [each for each in self._scaled(block) if each not in self._covered]
        if not missing:
            return statement
        lines = [self.get_metadata(PositionProvider, each).start.line for each in missing]
        return self._marked(statement, lines[0], UNCOVERED)

    def _block(self, originals, updated):
        pieces = [self._statement(*pair) for pair in zip(originals, updated)]
        steps = [self._stepped(each) is not None for each in originals]
        scales = [bool(self._scaled(each)) for each in originals]
        for index, is_step in enumerate(steps):
            if is_step and not self._steps_again(originals[index + 1 :]):
                pieces[index] += code.statements(self.names.scaler + ".update()\n")
        result, end = [], len(originals)
        for index in range(len(originals) - 1, -1, -1):
            if scales[index] and index < end:
                region = self._forward(originals, scales, index)
                if region is not None:
                    first, last = region
                    wrapped = self._under_autocast([each for piece in pieces[first : last + 1] for each in piece])
                    pieces[first : last + 1] = [[wrapped]] + [[]] * (last - first)
        for piece in pieces:
            result += piece
        return result

    def _statement(self, original, updated):
        """Return the statements in place of one."""
        line = self.get_metadata(PositionProvider, original).start.line
        is_simple = isinstance(original, cst.SimpleStatementLine)
        if line in self.plan.untouched:
            return [self._marked(original if is_simple else updated, line, self.plan.untouched[line])]
        if isinstance(original, cst.With) and self._own_scale(original) is not None:
            return self._scaled_backward(original, updated)
        if line in self.plan.unscale:
            before = "{}.unscale_({})\n".format(self.names.scaler, self.plan.unscale[line])
            return _in_place_of(updated, before) + [updated.with_changes(leading_lines=())]
        if not is_simple:
            return [updated]
        call = next((each for each in code.calls(original) if self._full_name(each.func) in INITIALIZE), None)
        if call is not None:
            return self._set_up(original, updated, call, line)
        stepped = self._stepped(original)
        if stepped is not None:
            if stepped.args:
                return [self._marked(original, line, "GradScaler takes no closure")]
            name = code.text(stepped.func.value)
            return _in_place_of(updated, "{}.step({})\n".format(self.names.scaler, name))
        if any(self._is_unknown_step(each) for each in code.calls(original)):
            return [self._marked(original, line, UNKNOWN_STEP)]
        return [updated]

    def _marked(self, statement, line, reason):
        self.left.append((line, reason))
        comment = cst.EmptyLine(comment=cst.Comment(MARK + reason))
        return statement.with_changes(leading_lines=[*statement.leading_lines, comment])

    def _set_up(self, original, updated, call, line):
        setup = Setup(call, self.names)
        if setup.problem is not None:
            return [self._marked(original, line, "amp.initialize: " + setup.problem)]
        lines = setup.lines()
        self.notes += [(line, note) for note in setup.notes]
        if self._setting_up:
            self._setting_up[-1] = True
        statement, result = original.body[0], setup.result()
        rest = []
        if isinstance(statement, cst.Assign) and code.text(statement.targets[0].target).strip("()") != result:
            rest = code.statements("{} = {}\n".format(code.text(statement.targets[0].target), result))
        elif isinstance(statement, cst.Return):
            rest = code.statements("return {}\n".format(result))
        return _in_place_of(updated, lines) + rest

    # -- scale_loss ----------------------------------------------------------------------------------------------------

    def _own_scale(self, statement):
        """Return the ``amp.scale_loss`` call of a ``with``, if it is its only item."""
        items = statement.items if isinstance(statement, cst.With) else ()
        call = items[0].item if len(items) == 1 else None
        is_scale = isinstance(call, cst.Call) and self._full_name(call.func) in SCALE_LOSS
        return call if is_scale else None

    def _scaled(self, statement):
        """Return the ``scale_loss`` statements in a statement, without those in nested functions."""
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            return []
        own = [statement] if self._own_scale(statement) is not None else []
        return own + [each for child in statement.children for each in self._scaled(child)]

    def _scaled_backward(self, original, updated):
        loss = code.text(code.argument(self._own_scale(original), 0, "loss"))
        before = []
        if self._needs_casts(original):
            self._covered.add(original)
            before = [self._under_autocast(code.statements("{} = {}\n".format(self.names.loss, loss)))]
            loss = self.names.loss
        asname = original.items[0].asname
        scaled, name = "{}.scale({})".format(self.names.scaler, loss), code.text(asname.name) if asname else "_"
        body = list(updated.body.body)
        if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and len(code.text(body[0]).split(name)) == 2:
            line = body[0].deep_replace(_first(body[0], name), code.expression(scaled))
            body = [line]
        else:
            body = code.statements("{} = {}\n".format(name, scaled)) + body
        lines = [*updated.leading_lines, *body[0].leading_lines]
        return before + [body[0].with_changes(leading_lines=lines)] + body[1:]

    def _needs_casts(self, original):
        """Return whether the loss is computed in the call: ``amp.scale_loss(criterion(model(x), y), optimizer)``."""
        loss = code.argument(self._own_scale(original), 0, "loss")
        names = [code.name_of(call.func) for call in code.calls(loss)]
        return any(
            name and "." not in name and name not in ("sum", "float") or self.plan.is_model(name) for name in names
        )

    def _forward(self, originals, scales, index):
        """Return (first, last): the statements before ``index`` that compute its losses, or None."""
        found = [each for each in self._scaled(originals[index]) if each not in self._covered]
        needed = set()
        for each in found:
            needed |= code.loaded_names(code.argument(self._own_scale(each), 0, "loss"))
        included = []
        for at in range(index - 1, -1, -1):
            if scales[at] or isinstance(originals[at], (cst.FunctionDef, cst.ClassDef)):
                break
            if code.assigned_names(originals[at]) & needed:
                included.insert(0, at)
                needed |= code.loaded_names(originals[at])
        with_model = [at for at in included if self._calls_a_model(originals[at])]
        with_call = with_model or [at for at in included if any(True for _ in code.calls(originals[at]))]
        if not found or not with_call:
            return None
        self._covered.update(found)
        return with_call[0], included[-1]

    def _under_autocast(self, statements):
        block = code.statements("with {}:\n    pass\n".format(self._autocast()))[0]
        lines, first = statements[0].leading_lines, statements[0].with_changes(leading_lines=())
        body = block.body.with_changes(body=[first] + statements[1:])
        return block.with_changes(body=body, leading_lines=lines)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _stepped(self, statement):
        """Return the call if a statement is ``optimizer.step()``, else None."""
        if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
            return None
        call = statement.body[0].value
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
            return None
        return call if self.plan.is_optimizer(code.name_of(call.func.value)) else None

    def _is_unknown_step(self, call):
        """Return whether a call is the step of an optimizer that is not known, or one whose result is used."""
        is_step = isinstance(call.func, cst.Attribute) and call.func.attr.value == "step"
        owner = code.text(call.func.value).lower() if is_step else ""
        return is_step and "sched" not in owner and ("opt" in owner or self.plan.is_optimizer(owner))

    def _steps_again(self, statements):
        """Return whether another optimizer steps after this one, before the next backward pass."""
        for each in statements:
            if self._scaled(each):
                return False
            if any(self._stepped(inner) is not None for inner in code.walk(each)):
                return True
        return False


def _in_place_of(statement, source):
    """Return statements from source, with the comments and blank lines above the statement that they replace."""
    first, *rest = code.statements(source)
    return [first.with_changes(leading_lines=statement.leading_lines)] + rest


def _first(node, name):
    """Return the first node with this dotted name."""
    return next(each for each in code.walk(node) if code.name_of(each) == name and isinstance(each, cst.BaseExpression))


def _turns_gradients_off(node):
    name = code.name_of(node.func) if isinstance(node, cst.Call) else None
    return name in ("torch.no_grad", "torch.inference_mode", "no_grad", "inference_mode")
