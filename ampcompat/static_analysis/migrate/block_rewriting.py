"""The rewriting itself: calls one by one, statements block by block."""

from itertools import takewhile

import libcst as cst

from ..reading.calls import INITIALIZE, SCALE_LOSS
from . import syntax
from .autocast_regions import ModelCallVisitor, evaluation_regions, training_regions, turns_gradients_off
from .branches import MARK, MOVED, Branches
from .call_rewriting import CallRewriter

UNKNOWN_STEP = "write scaler.step(...) with the optimizer that steps here, and scaler.update() after the last one"
UNCOVERED = "the forward pass of this loss is elsewhere: put it under torch.autocast"


class Rewriter(CallRewriter):
    """Rewrites a script, given its ``ScriptFacts``.

    Args:
        facts: the ``ScriptFacts``.

    Attributes:
        notes: (line, text) of what changes.
        left: (line, text) of what could not be rewritten.
    """

    def __init__(self, facts):
        super().__init__(facts)
        self.notes, self.left = [], []
        self._branches, self._calls = Branches(facts.names, facts.fallback_names), ModelCallVisitor(facts)
        self._covered = set()  # scale_loss statements whose forward pass is under autocast
        self._regions = {}  # a block -> (first, last) of its statements that compute losses
        self._moved = {}  # an `if` -> the statements that belong before it

    def visit_Module(self, node):
        """Find the statements that belong under autocast before anything is rewritten."""
        super().visit_Module(node)
        self._plan_regions(node)

    def _plan_regions(self, node):
        """Find the statements of each block that belong under autocast for a loss, inner blocks first."""
        for child in syntax.children(node):
            self._plan_regions(child)
        if any(self._needs_casts(loss) for loss in self._losses(node)):
            self._covered.add(node)
        if isinstance(node, (cst.IndentedBlock, cst.Module)):
            self._regions[node] = self._training_regions(node.body)

    def _evaluation(self, node):
        """Return the function, or the block without gradients, whose evaluation a node belongs to, or None."""
        for around in self._around(node):
            if self._is_without_gradients(around):
                return around
            if isinstance(around, cst.FunctionDef):
                return around if self._calls.evaluates(around) else None
        return None

    def _is_without_gradients(self, node):
        """Return whether a node is a block without gradients in which a model is called."""
        is_off = isinstance(node, cst.With) and any(turns_gradients_off(item.item) for item in node.items)
        return is_off and self._calls.calls_a_model(node.body)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def leave_With(self, original_node, updated_node):
        """Cast in a block without gradients."""
        if not self._is_without_gradients(original_node) or not self._precision.autocasts:
            return updated_node
        items = [item.with_changes(comma=cst.MaybeSentinel.DEFAULT) for item in updated_node.items]
        autocast = cst.WithItem(cst.parse_expression(self._precision.autocast()))
        return updated_node.with_changes(items=items + [autocast])

    def leave_IndentedBlock(self, original_node, updated_node):
        """Rewrite the statements of a block."""
        return updated_node.with_changes(body=self._block(original_node, updated_node))

    def leave_Module(self, original_node, updated_node):
        """Rewrite the statements of the module."""
        return updated_node.with_changes(body=self._block(original_node, updated_node))

    def _block(self, original_block, updated_block):
        originals = original_block.body
        pieces = [self._statement(*pair) for pair in zip(originals, updated_block.body)]
        if self._precision.has_scaler:
            for index, statement in enumerate(originals):
                if self._stepped(statement) is not None and not self._steps_again(originals, index + 1):
                    pieces[index] += syntax.statements(self.names.scaler + ".update()\n")
        regions = self._regions[original_block]
        if not regions and isinstance(self._evaluation(original_block), cst.FunctionDef):
            regions = evaluation_regions(originals, self._calls)
        for first, last in regions:
            wrapped = self._under_autocast([each for piece in pieces[first : last + 1] for each in piece])
            pieces[first : last + 1] = [wrapped] + [[]] * (last - first)
        return [each for piece in pieces for each in piece] or syntax.statements(MOVED + "\n")

    def _training_regions(self, originals):
        """Return (first, last) of the statements that compute the losses of this block."""
        scaled = {at: self._scaled(each) for at, each in enumerate(originals)}
        open_ = {at: [each for each in found if each not in self._covered] for at, found in scaled.items()}
        losses = {at: [loss for each in found for loss in self._losses(each)] for at, found in open_.items() if found}

        barriers = [at for at, each in enumerate(originals) if scaled[at] or self._stepped(each) is not None]
        found = training_regions(originals, losses, barriers, self._calls)
        if found:
            self._covered.update(each for each in sum(open_.values(), []))
        return found

    def _statement(self, original, updated):
        """Return the statements that replace one."""
        line = self.place(original)[0]
        if line in self.facts.untouched:
            is_simple = isinstance(original, cst.SimpleStatementLine)
            return [self._marked(original if is_simple else updated, line, self.facts.untouched[line])]
        if self._losses(original):
            return self._scaled_backward(original, updated)
        if line in self.facts.unscale and self._precision.has_scaler:
            before = f"{self.names.scaler}.unscale_({self.facts.unscale[line]})\n"
            return syntax.in_place_of(updated, before) + [updated.with_changes(leading_lines=())]
        if isinstance(original, cst.If):
            return self._if(original, updated)
        if not isinstance(original, cst.SimpleStatementLine):
            return [updated]
        call = next((each for each in syntax.calls(original) if self._full_name(each.func) in INITIALIZE), None)
        return self._set_up(original, updated, call, line) if call is not None else self._step(original, updated, line)

    def _marked(self, statement, line, reason):
        self.left.append((line, reason))
        comment = cst.EmptyLine(comment=cst.Comment(MARK + reason))
        return statement.with_changes(leading_lines=[*statement.leading_lines, comment])

    def _if(self, original, updated):
        """Return the statements that replace an ``if``."""
        if self._branches.never_runs(original):
            return []
        before, default = self._moved.get(original, []), self._precision.before(original)
        before = before or (syntax.in_place_of(updated, default) if default and self._is_outermost(original) else [])
        updated = updated.with_changes(leading_lines=()) if before else updated
        uses_apex = any(self._full_name(call.func) for call in syntax.calls(original.body))
        if uses_apex or (original.orelse and any(self._full_name(call.func) for call in syntax.calls(original.orelse))):
            joined = self._branches.joined(updated, uses_apex) if self._precision.has_scaler else None
            if joined is not None:
                return before + joined
        return before + [updated]

    def _is_outermost(self, statement):
        return not isinstance(next(self._around(statement), None), (cst.If, cst.Try))

    def _set_up(self, original, updated, call, line):
        setup = self._precision.setups[call]
        if setup.problem is not None:
            return [self._marked(original, line, "amp.initialize: " + setup.problem)]
        self.notes += [(line, note) for note in setup.notes]
        statement, result = original.body[0], setup.result()
        rest = []
        if isinstance(statement, cst.Assign) and syntax.bare_text(statement.targets[0].target) != result:
            rest = syntax.statements(f"{syntax.text(statement.targets[0].target)} = {result}\n")
        elif isinstance(statement, cst.Return):
            rest = syntax.statements(f"return {result}\n")
        first, lines = self._precision.placed(setup, call, self._around(original))
        if first is None:
            return syntax.in_place_of(updated, lines) + rest if lines else rest
        leading = [*first.leading_lines, *(each for each in updated.leading_lines if each.comment is not None)]
        new = syntax.statements(lines)
        self._moved[first] = [new[0].with_changes(leading_lines=leading)] + new[1:] if new else []
        return rest or syntax.statements(MOVED + "\n")

    # -- scale_loss ----------------------------------------------------------------------------------------------------

    def _losses(self, statement):
        """Return the losses of the ``amp.scale_loss`` that are the last items of a ``with``, the last first."""
        items = statement.items[::-1] if isinstance(statement, cst.With) else ()
        scaled = takewhile(lambda item: self._full_name(getattr(item.item, "func", None)) in SCALE_LOSS, items)
        return [syntax.argument(item.item, 0, "loss") for item in scaled]

    def _scaled(self, statement):
        """Return the ``scale_loss`` statements in a statement, without those in nested functions."""
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            return []
        own = [statement] if self._losses(statement) else []
        return own + [each for child in syntax.children(statement) for each in self._scaled(child)]

    def _scaled_backward(self, original, updated):
        body, losses = list(updated.body.body), self._losses(original)
        for item, loss in zip(original.items[::-1], losses):
            body = self._with_scaled(loss, syntax.text(item.asname.name) if item.asname else "_", body)
        if self._precision.autocasts and original not in self._covered:
            body[0] = self._marked(body[0], self.place(original)[0], UNCOVERED)
        others = updated.items[: len(updated.items) - len(losses)]
        return syntax.with_items(updated.with_changes(body=updated.body.with_changes(body=body)), others)

    def _with_scaled(self, loss, name, body):
        """Return the statements of a block whose scaled loss has a name, with the scaled loss itself."""
        before = []
        if self._needs_casts(loss):
            before = self._under_autocast(syntax.statements(f"{self.names.loss} = {syntax.text(loss)}\n"))
            loss = cst.parse_expression(self.names.loss)
        source = syntax.text(loss)
        scaled = f"{self.names.scaler}.scale({source})" if self._precision.has_scaler else syntax.operand(loss)
        uses = sum(len(syntax.text(each).split(name)) - 1 for each in body)
        if uses == 1 and len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine):
            body = [body[0].deep_replace(syntax.first(body[0], name), cst.parse_expression(scaled))]
        elif not self._precision.has_scaler and isinstance(loss, cst.Name):
            body = [syntax.renamed(each, name, source) for each in body]
        else:
            body = syntax.statements(f"{name} = {scaled}\n") + body
        return before + body

    def _needs_casts(self, loss):
        """Return whether the loss is computed in the call: ``amp.scale_loss(criterion(model(x), y), optimizer)``."""
        names = [syntax.name_of(call.func) for call in syntax.calls(loss)]
        plain = [name for name in names if name and "." not in name and name not in ("sum", "float")]
        return bool(plain) or self._calls.calls_a_model(loss)

    def _under_autocast(self, statements):
        """Return the statements under autocast; no statements are ever under it twice."""
        if not self._precision.autocasts:
            return statements
        context = self._precision.autocast()
        block = syntax.statements(f"with {context}:\n    pass\n")[0]
        lines = statements[0].leading_lines
        inner = syntax.without_with([statements[0].with_changes(leading_lines=())] + statements[1:], context)
        return [block.with_changes(body=block.body.with_changes(body=inner), leading_lines=lines)]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _stepped(self, statement):
        """Return the call if a statement is ``optimizer.step()``, otherwise None."""
        line = syntax.first_of(statement, cst.Expr)
        call = line.value if line is not None else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
            return None
        return call if self.facts.is_optimizer(syntax.name_of(call.func.value)) else None

    def _step(self, original, updated, line):
        """Return the statements that replace a simple one that may be the step of an optimizer."""
        stepped = self._stepped(original)
        if not self._precision.has_scaler:
            return [updated]
        if stepped is not None and stepped.args:
            return [self._marked(original, line, "GradScaler does not support closures")]
        if stepped is not None:
            source = f"{self.names.scaler}.step({syntax.text(stepped.func.value)})"
            return [updated.with_changes(body=syntax.statements(source + "\n")[0].body)]
        if any(self._is_unknown_step(each) for each in syntax.calls(original)):
            return [self._marked(original, line, UNKNOWN_STEP)]
        return [updated]

    def _is_unknown_step(self, call):
        """Return whether a call is the step of an unknown optimizer, or a step whose result is used."""
        is_step = isinstance(call.func, cst.Attribute) and call.func.attr.value == "step"
        owner = syntax.text(call.func.value).lower() if is_step else ""
        return is_step and "sched" not in owner and ("opt" in owner or self.facts.is_optimizer(owner))

    def _steps_again(self, statements, start):
        """Return whether another optimizer steps from ``start`` on, before the next backward pass."""
        for each in map(statements.__getitem__, range(start, len(statements))):
            if self._scaled(each):
                return False
            if any(self._stepped(inner) is not None for inner in syntax.walk(each)):
                return True
        return False
