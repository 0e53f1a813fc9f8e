"""What a script does with Apex, found in its syntax tree before anything is rewritten."""

import ast
from typing import NamedTuple

from ..check.backward_rules import CLIPS, SCALE_LOSS, is_parameters
from ..check.bindings import Bindings, dotted, last_name
from ..check.files import PYTHON
from ..check.flow import scopes, together
from ..check.levels import argument, initialize_calls
from ..check.source import Source

PLAIN_BACKWARD = "this backward pass is not scaled, but its optimizer steps by a GradScaler"


class Names(NamedTuple):
    """The names of the variables that the new script gets; they are free in the old one."""

    scaler: str
    flag: str
    device: str
    loader: str
    loss: str


class Plan:
    """Facts about a script.

    Attributes:
        bindings: which names stand for Apex.
        models: dotted names of the models that ``amp.initialize`` gets or returns.
        optimizers: those of the optimizers, also of ``scale_loss``.
        unscale: line of a clipping statement -> the optimizer whose gradients must be unscaled before it.
        untouched: line -> why the statement in it cannot be rewritten.
        names: ``Names``.
    """

    def __init__(self, source_text, path="script.py"):
        source = Source(path, source_text.encode("utf-8"), PYTHON)
        self.broken = source.broken
        self.bindings = Bindings(source.nodes, assignments=False)
        self.models, self.optimizers, self.unscale, self.untouched = set(), set(), {}, {}
        used = {node.id for node in source.nodes if isinstance(node, ast.Name)}
        used |= {node.name for node in source.nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        used |= {node.arg for node in source.nodes if isinstance(node, ast.arg)}
        self.names = Names(*(_free(name, used) for name in ("scaler", "use_amp", "device_type", "load_scaler", "loss")))
        self.initializes = bool(initialize_calls(source.nodes, self.bindings))
        self._find_models(source.nodes)
        for _, steps in scopes(source.nodes):
            self._clips(steps)

    def is_model(self, name):
        """Return whether a dotted name is one of the models; ``model`` counts for ``self.model`` too."""
        return name is not None and any(name.rpartition(".")[2] == each.rpartition(".")[2] for each in self.models)

    def is_optimizer(self, name):
        """Return whether a dotted name is one of the optimizers."""
        return name is not None and any(name.rpartition(".")[2] == each.rpartition(".")[2] for each in self.optimizers)

    def scaled_call(self, node):
        """Return whether a call of the syntax tree is ``amp.scale_loss``."""
        return isinstance(node, ast.Call) and self.bindings.full_name(node.func) in SCALE_LOSS

    def _find_models(self, nodes):
        calls = initialize_calls(nodes, self.bindings)
        for call in calls:
            self.models |= _names(argument(call, 0, "models"))
            self.optimizers |= _names(argument(call, 1, "optimizers"))
        for node in nodes:
            if isinstance(node, ast.Assign) and node.value in calls and len(node.targets) == 1:
                target = node.targets[0]
                both = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else [target]
                self.models |= _names(both[0])
                self.optimizers |= _names(both[1]) if len(both) == 2 else set()
            if self.scaled_call(node):
                self.optimizers |= _names(argument(node, 1, "optimizers"))

    def _clips(self, steps):
        """Find the clipping statements of a scope that see scaled gradients, and what else touches them."""
        blocks = [(step, call) for step in steps for call in step.calls() if self.scaled_call(call)]
        ends = [step for step in steps for call in step.calls() if self._is_step(call)]
        unscaled = []  # (step, optimizer)
        for step in steps:
            line = step.node.lineno
            before = [call for block, call in blocks if block.node.lineno < line and together(block, step)]
            inside = any(self.scaled_call(item.context_expr) for node in step.blocks for item in node.items)
            for call in step.calls() if before and not isinstance(step.node, (ast.With, ast.If)) else ():
                if self._reads_gradients(call):
                    self._unscale(step, argument(before[-1], 1, "optimizers"), ends, unscaled)
                elif _is_backward(call) and not inside:
                    self.untouched[line] = PLAIN_BACKWARD

    def _unscale(self, step, optimizer, ends, unscaled):
        reached = [end for end in ends if set(end.conditions) <= set(step.conditions)]
        line, name = step.node.lineno, dotted(optimizer) if optimizer is not None else None
        if ends and not reached:
            self.untouched[line] = (
                "gradients are clipped after every backward pass, but the optimizer steps less often; GradScaler "
                "unscales once per step: clip where the optimizer steps"
            )
        elif name is None:
            self.untouched[line] = "which optimizer's gradients are unscaled here is not known"
        elif not any(name == done and _is_passed(first, step, ends) for first, done in unscaled):
            self.unscale[line] = name
            unscaled.append((step, name))

    def _reads_gradients(self, call):
        if self.bindings.full_name(call.func) in ("apex.amp.master_params", "apex.amp._amp_state.master_params"):
            return True
        return last_name(call.func) in CLIPS and bool(call.args) and is_parameters(call.args[0])

    def _is_step(self, call):
        return last_name(call.func) == "step" and self.is_optimizer(dotted(getattr(call.func, "value", call.func)))


def _is_passed(first, second, ends):
    """Return whether ``second`` always comes after ``first``, with no step of an optimizer between them."""
    between = [end for end in ends if first.node.lineno < end.node.lineno < second.node.lineno]
    return set(first.conditions) <= set(second.conditions) and not between


def _is_backward(call):
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args


def _names(node):
    each = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return {dotted(one) for one in each if one is not None and dotted(one)}


def _free(name, used):
    while name in used:
        name = "grad_" + name if name == "scaler" else name + "_"
    return name
