"""Finds where gradients are clipped or read, so that they must be unscaled first, and unscaled backward passes."""

import ast

from ..model.calls import argument, is_backward, is_clipping
from ..model.flow import together
from ..model.names import called, dotted, string

ONCE_PER_STEP = (
    "gradients are clipped or read after every backward pass, but {}; GradScaler unscales once per step: do it where "
    "the optimizer steps, or divide what is read by scaler.get_scale()"
)
_MASTER_PARAMS = ("apex.amp.master_params", "apex.amp._amp_state.master_params")
PLAIN_BACKWARD = "this backward pass is not scaled, but its optimizer steps with a GradScaler"


class Gradients:
    """Fills in ``unscale`` and ``untouched`` of a ``ScriptFacts``."""

    def __init__(self, facts):
        self._facts = facts

    def find(self, source):
        """Search the scopes of a ``Source``."""
        for scope, steps in source.scopes:
            self._gradients(steps, params_of(scope))

    def _gradients(self, steps, params):
        """Find the statements of a scope that clip or read scaled gradients, and unscaled backward passes."""
        blocks = [(step, call) for step in steps for call in step.calls() if self._facts.scaled_call(call)]
        ends = [step for step in steps for call in step.calls() if self._is_step(call)]
        unscaled, end_of_loop = [], 0  # (step, optimizer)
        for step in steps:
            line = step.node.lineno
            before = [each for each in blocks if each[0].node.lineno < line and together(each[0], step)]
            inside = any(self._facts.scaled_call(item.context_expr) for node in step.blocks for item in node.items)
            if not before or line <= end_of_loop or isinstance(step.node, (ast.With, ast.If)):
                continue
            is_loop = isinstance(step.node, (ast.For, ast.While))
            nodes = list(ast.walk(step.node) if is_loop else step.expressions())
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            if any(self._facts.scaled_call(call) or self._is_step(call) for call in calls) and is_loop:
                continue
            if any(map(self._clips, calls)) or (not inside and self._reads(nodes, params)):
                end_of_loop = max(getattr(node, "lineno", 0) for node in nodes) if is_loop else 0
                self._unscale(step, before[-1], blocks, ends, unscaled)
            elif any(map(is_backward, calls)) and not (inside or is_loop):
                self._facts.untouched[line] = PLAIN_BACKWARD

    def _unscale(self, step, last, blocks, ends, unscaled):
        """Note that gradients are unscaled before ``step``; ``last``: the preceding block and its ``scale_loss``."""
        reached = [end for end in ends if set(end.conditions) <= set(step.conditions)]
        optimizer = argument(last[1], 1, "optimizers")
        line, name = step.node.lineno, dotted(optimizer) if optimizer is not None else None
        if any(last[0].node.lineno < end.node.lineno < line for end in reached):
            return  # the step has unscaled them
        next_end = min([end.node.lineno for end in reached if end.node.lineno > line] or [line])
        if ends and not reached:
            self._facts.untouched[line] = ONCE_PER_STEP.format("the optimizer steps less often")
        elif any(line < block.node.lineno < next_end and together(block, step) for block, _ in blocks):
            self._facts.untouched[line] = ONCE_PER_STEP.format("another pass adds to them before the optimizer steps")
        elif any(name == done and _may_be_passed(first, step, ends) for first, done in unscaled):
            self._facts.untouched[line] = (
                "these gradients may already be unscaled; call unscale_ once, after the backward pass"
            )
        elif name is None:
            self._facts.untouched[line] = "it is not known which optimizer's gradients are unscaled here"
        elif not any(name == done and _is_passed(first, step, ends) for first, done in unscaled):
            self._facts.unscale[line] = name
            unscaled.append((step, name))

    def _reads(self, nodes, params):
        """Return whether nodes read ``param.grad`` of a param of a model; a comparison with None does not count."""
        ignored = [node.func for node in nodes if isinstance(node, ast.Call)]
        for node in nodes:
            if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                ignored.append(node.left)
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load):
                owner = dotted(node.value) or ""
                parts = owner.split(".")
                of_model = any(self._facts.is_model(".".join(parts[:end])) for end in range(1, len(parts)))
                if (owner in params or of_model) and not any(node is each for each in ignored):
                    return True
        return False

    def _clips(self, call):
        """Return whether a call clips gradients or returns the params whose gradients are clipped."""
        return self._facts.source.names.of_apex(call.func) in _MASTER_PARAMS or is_clipping(call)

    def _is_step(self, call):
        owner = getattr(call.func, "value", call.func)
        return called(call) == "step" and self._facts.is_optimizer(dotted(owner))


def params_of(scope):
    """Return the names in a scope that refer to params: ``p`` in ``for p in model.parameters()``."""
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.comprehension)) and any(map(_gives_params, ast.walk(node.iter))):
            found |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    return found


def _gives_params(node):
    return called(node) in ("parameters", "named_parameters", "master_params") or string(node) == "params"


def _is_passed(first, second, ends):
    """Return whether ``second`` always comes after ``first``, with no step of an optimizer between them."""
    return set(first.conditions) <= set(second.conditions) and not _ends_between(first, second, ends)


def _may_be_passed(first, second, ends):
    """Return whether ``second`` only sometimes comes after ``first``, with no step of an optimizer between them."""
    is_always = set(first.conditions) <= set(second.conditions)
    return together(first, second) and not is_always and not _ends_between(first, second, ends)


def _ends_between(first, second, ends):
    return [end for end in ends if first.node.lineno < end.node.lineno < second.node.lineno]
