"""How a script uses Apex, and where it reads gradients, found in its syntax tree before anything is rewritten."""

import ast
from typing import NamedTuple

from ..reading.apex_names_used import uses
from ..reading.calls import (
    SCALE_LOSS,
    argument,
    initialize_calls,
    is_backward,
    is_clipping,
    is_parameters,
    names_in,
    passed,
)
from ..reading.flow import together
from ..reading.names import Names, bound_in, called, dotted, imports_of, last_name, names_used, string
from ..reading.source import Source
from .precision_setup import Options


class NewNames(NamedTuple):
    """The names of the new script's additional variables, which the old one does not use."""

    scaler: str
    flag: str
    device: str
    loader: str
    loss: str
    dtype: str


_NAMES = NewNames("scaler", "use_amp", "device_type", "load_scaler", "loss", "amp_dtype")
_LARGE = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.With)
_EVALUATE = ("no_grad", "inference_mode", "eval")
ONCE_PER_STEP = (
    "gradients are clipped or read after every backward pass, but {}; GradScaler unscales once per step: do it where "
    "the optimizer steps, or divide what is read by scaler.get_scale()"
)
_MASTER_PARAMS = ("apex.amp.master_params", "apex.amp._amp_state.master_params")
PLAIN_BACKWARD = "this backward pass is not scaled, but its optimizer steps with a GradScaler"


class ScriptFacts:
    """Facts about a script.

    Attributes:
        source: its ``Source``, in whose names assignments such as ``self.amp = amp`` are not followed.
        models: dotted names of models that are passed to or returned by ``amp.initialize``.
        optimizers: those of the optimizers, also of ``scale_loss``.
        unscale: line of a statement that clips or reads gradients -> the optimizer whose gradients must be unscaled
            before it.
        untouched: line -> why its statement cannot be rewritten.
        names: ``NewNames``.
        helpers: names of functions that run a model passed to them, for a loss.
        uses_apex: whether it uses Apex at all.
        options: facts about the script's command line.
        is_guarded: whether a call of ``amp.initialize`` is under an ``if`` other than that of ``__main__``.
        short_names: "torch.nn" -> its name in the script, and likewise for torch.optim.
        fallback_names: names of Apex that are None if it is missing.
        params_at: place of a call of ``master_params`` -> source of the params, if the optimizer was made with
            ``model.parameters()`` of a model that is known there.
    """

    def __init__(self, source_text, path="script.py"):
        self.source = source = Source(path, source_text.encode("utf-8"))
        source.names = Names(source.nodes, assignments=False)
        self.models, self.optimizers, self.unscale, self.untouched = set(), set(), {}, {}
        self.uses_apex = bool(uses(source))
        self.options, self.helpers = Options(source.nodes), set()
        self.fallback_names = set(_fallback_names(source.nodes)) & set(source.names.apex)
        attributes = (node for node in source.nodes if isinstance(node, ast.Attribute))
        used = names_used(source.nodes) | {node.attr for node in attributes if dotted(node.value) == "self"}
        self.names = NewNames(*(_free(name, used) for name in _NAMES))
        self.initializes = bool(initialize_calls(source.nodes, source.names))
        self.short_names = dict(_short_names(source.tree.body))
        self.is_guarded = any(map(self._guards, source.nodes))
        self._find_models(source.nodes)
        self._follow_arguments(source.nodes)
        self.params_at = dict(self._params_at(dict(self._made_from(source.nodes))))
        Gradients(self).find(source)

    def is_model(self, name):
        """Return whether a dotted name is one of the models; ``model`` counts for ``self.model`` too."""
        return name is not None and any(name.rpartition(".")[2] == each.rpartition(".")[2] for each in self.models)

    def is_optimizer(self, name):
        """Return whether a dotted name is one of the optimizers."""
        return name is not None and any(name.rpartition(".")[2] == each.rpartition(".")[2] for each in self.optimizers)

    def scaled_call(self, node):
        """Return whether a call of the syntax tree is ``amp.scale_loss``."""
        return isinstance(node, ast.Call) and self.source.names.of_apex(node.func) in SCALE_LOSS

    def _find_models(self, nodes):
        calls = initialize_calls(nodes, self.source.names)
        for call in calls:
            self.models.update(names_in(argument(call, 0, "models")))
            self.optimizers.update(names_in(argument(call, 1, "optimizers")))
        for node in nodes:
            if isinstance(node, ast.Assign) and node.value in calls and len(node.targets) == 1:
                target = node.targets[0]
                both = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else [target]
                self.models.update(names_in(both[0]))
                self.optimizers.update(names_in(both[1]) if len(both) == 2 else ())
            if self.scaled_call(node):
                self.optimizers.update(names_in(argument(node, 1, "optimizers")))

    def _guards(self, node):
        """Return whether a node is an ``if`` with ``amp.initialize`` directly in it."""
        if not isinstance(node, ast.If) or "__main__" in map(string, ast.walk(node.test)):
            return False
        inner = (each for each in node.body + node.orelse if not isinstance(each, _LARGE))
        return any(initialize_calls(ast.walk(each), self.source.names) for each in inner)

    def _follow_arguments(self, nodes):
        """Follow models and optimizers into the functions that they are passed to, and find those that run a model."""
        functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        calls, before = [node for node in nodes if isinstance(node, ast.Call)], None
        while before != (len(self.models), len(self.optimizers), len(self.helpers)):
            before = len(self.models), len(self.optimizers), len(self.helpers)
            for call in calls:
                function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
                for name, value in passed(call, function) if function is not None else ():
                    self.models |= {name} if self.is_model(dotted(value)) else set()
                    self.optimizers |= {name} if self.is_optimizer(dotted(value)) else set()
            self.helpers |= {name for name, node in functions.items() if name != "forward" and self._is_helper(node)}

    def _is_helper(self, function):
        """Return whether a function runs a model, and leaves the backward pass and evaluation to its callers."""
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        names = {last_name(call.func) for call in calls} | {last_name(each) for each in function.decorator_list}
        if names & set(_EVALUATE) or "backward" in names:
            return False
        return any(self.is_model(dotted(call.func)) or dotted(call.func) in self.helpers for call in calls)

    def _params_at(self, made_from):
        for scope, _ in self.source.scopes:
            bound = bound_in(scope)
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and self.source.names.of_apex(node.func) in _MASTER_PARAMS:
                    params = made_from.get(dotted(node.args[0]) if node.args else None, "")
                    if params.partition(".")[0] in bound:
                        yield self.source.position(node), params

    def _made_from(self, nodes):
        """Yield (optimizer, source of its params) of optimizers that are created once, with ``model.parameters()``."""
        found = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
                name = dotted(node.targets[0])
                if name in self.optimizers and self.source.names.of_apex(node.value.func) != "apex.amp.initialize":
                    found.setdefault(name, []).append(argument(node.value, 0, "params"))
        for name, params in found.items():
            is_filter = called(params[0]) == "filter" and bool(params[0].args)
            params = [params[0].args[-1]] if is_filter and len(params) == 1 else params
            if len(params) == 1 and is_parameters(params[0]) and not params[0].args and not params[0].keywords:
                owner = dotted(params[0].func.value)
                if owner:
                    yield name, owner + ".parameters()"


def _short_names(body):
    """Yield (module, name) of torch modules that a script imports under another name at module level."""
    for each in imports_of(body):
        if each.module == "torch" if each.name else each.is_renamed:
            yield each.full_name, each.local


def _fallback_names(nodes):
    """Yield the names that are set to None if an import fails."""
    for node in nodes:
        if isinstance(node, ast.Try):
            handled = [each for handler in node.handlers for each in handler.body if isinstance(each, ast.Assign)]
            for each in handled:
                if type(each.value).__name__ in ("Constant", "NameConstant"):  # the second in Python 3.7
                    yield from (dotted(target) for target in each.targets if each.value.value is None)


def _free(name, used):
    while name in used:
        name = "grad_" + name if name == "scaler" else name + "_"
    return name


# -- gradients that are clipped or read must be unscaled first ---------------------------------------------------------


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
