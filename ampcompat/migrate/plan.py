"""What a script does with Apex, found in its syntax tree before anything is rewritten."""

import ast
from typing import NamedTuple

from ..check.backward_rules import CLIPS, SCALE_LOSS, is_parameters
from ..check.bindings import Bindings, dotted, last_name, string
from ..check.files import PYTHON
from ..check.flow import scopes, together
from ..check.levels import argument, initialize_calls
from ..check.source import Source
from ..check.uses import uses
from .setup_code import Options

ONCE_PER_STEP = (
    "gradients are clipped or read after every backward pass, but {}; GradScaler unscales once per step: do it where "
    "the optimizer steps, or divide what is read by scaler.get_scale()"
)
PLAIN_BACKWARD = "this backward pass is not scaled, but its optimizer steps by a GradScaler"


class Names(NamedTuple):
    """The names of the variables that the new script gets; they are free in the old one."""

    scaler: str
    flag: str
    device: str
    loader: str
    loss: str
    dtype: str
    autocast: str


_NAMES = Names("scaler", "use_amp", "device_type", "load_scaler", "loss", "amp_dtype", "autocast")
_LARGE = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.With)
_LOSSES = ("loss", "criterion", "entropy", "softmax", "matmul", "linear", "conv")
_FLOAT32 = ("norm", "exp", "log", "pow", "dist", "cdist", "mm", "bmm", "einsum")
#: A file whose lines are all shorter may have lines of this many characters.
_LEAST_WIDTH = 79
_EVALUATE = ("no_grad", "inference_mode", "eval")


class Plan:
    """Facts about a script.

    Attributes:
        bindings: which names stand for Apex.
        models: dotted names of the models that ``amp.initialize`` gets or returns.
        optimizers: those of the optimizers, also of ``scale_loss``.
        unscale: line of a statement that clips or reads gradients -> the optimizer whose gradients must be unscaled
            before it.
        untouched: line -> why the statement in it cannot be rewritten.
        names: ``Names``.
        helpers: names of functions that run a model that they get, for a loss.
        uses_apex: whether it uses Apex at all.
        plain: names of functions of the script in which autocast changes nothing: they run no model, and no loss.
        options: what is known of the script's command line.
        width: how many characters the longest line has.
        is_guarded: whether a call of ``amp.initialize`` is under an ``if`` other than that of ``__main__``.
        short_names: "torch.nn" -> the name by which the script has it, and of torch.optim too.
        fallback_names: names of Apex that are None where it is missing.
        made_from: dotted name of an optimizer -> source of the params that it was made of, if that is known.
    """

    def __init__(self, source_text, path="script.py"):
        source = Source(path, source_text.encode("utf-8"), PYTHON)
        self.broken = source.broken
        self.width = max([_LEAST_WIDTH] + [len(line) for line in source.lines])
        self.bindings = Bindings(source.nodes, assignments=False)
        self.models, self.optimizers, self.unscale, self.untouched = set(), set(), {}, {}
        self.uses_apex = bool(uses(source, self.bindings))
        self.options, self.helpers = Options(source.nodes), set()
        self.fallback_names = set(_fallback_names(source.nodes)) & set(self.bindings.apex)
        used = set().union(*map(_used_names, source.nodes))
        self.names = Names(*(_free(name, used) for name in _NAMES))
        self.initializes = bool(initialize_calls(source.nodes, self.bindings))
        self.short_names = dict(_short_names(source.tree.body))
        self.is_guarded = any(map(self._guards, source.nodes))
        self._find_models(source.nodes)
        self._follow_arguments(source.nodes)
        self.made_from = dict(self._made_from(source.nodes))
        for scope, steps in scopes(source.nodes):
            self._gradients(steps, params_of(scope))

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

    def _guards(self, node):
        """Return whether a node is an ``if`` with ``amp.initialize`` directly in it."""
        if not isinstance(node, ast.If) or "__main__" in map(string, ast.walk(node.test)):
            return False
        inner = (each for each in node.body + node.orelse if not isinstance(each, _LARGE))
        return any(initialize_calls(ast.walk(each), self.bindings) for each in inner)

    def _follow_arguments(self, nodes):
        """Follow models and optimizers into the functions that get them, and find those that run a model."""
        functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        calls, before = [node for node in nodes if isinstance(node, ast.Call)], None
        self.plain = {name for name, node in functions.items() if not any(map(_computes, ast.walk(node)))}
        while before != (len(self.models), len(self.optimizers), len(self.helpers)):
            before = len(self.models), len(self.optimizers), len(self.helpers)
            for call in calls:
                function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
                for name, value in _passed(call, function) if function is not None else ():
                    self.models |= {name} if self.is_model(dotted(value)) else set()
                    self.optimizers |= {name} if self.is_optimizer(dotted(value)) else set()
            self.helpers |= {name for name, node in functions.items() if name != "forward" and self._is_helper(node)}
        self.plain -= self.helpers

    def _is_helper(self, function):
        """Return whether a function runs a model, and leaves the backward pass and evaluation to its callers."""
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        names = {last_name(call.func) for call in calls} | {last_name(each) for each in function.decorator_list}
        if names & set(_EVALUATE) or "backward" in names:
            return False
        return any(self.is_model(dotted(call.func)) or dotted(call.func) in self.helpers for call in calls)

    def _made_from(self, nodes):
        """Yield (optimizer, source of its params) of optimizers that are made once, of ``model.parameters()``."""
        found = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
                name = dotted(node.targets[0])
                if name in self.optimizers and self.bindings.full_name(node.value.func) != "apex.amp.initialize":
                    found.setdefault(name, []).append(argument(node.value, 0, "params"))
        for name, params in found.items():
            is_filter = isinstance(params[0], ast.Call) and last_name(params[0].func) == "filter"
            params = [params[0].args[-1]] if is_filter and len(params) == 1 and params[0].args else params
            if len(params) == 1 and is_parameters(params[0]) and not params[0].args and not params[0].keywords:
                owner = dotted(params[0].func.value)
                if owner:
                    yield name, owner + ".parameters()"

    def _gradients(self, steps, params):
        """Find the statements of a scope that clip or read scaled gradients, and unscaled backward passes."""
        blocks = [(step, call) for step in steps for call in step.calls() if self.scaled_call(call)]
        ends = [step for step in steps for call in step.calls() if self._is_step(call)]
        unscaled, end_of_loop = [], 0  # (step, optimizer)
        for step in steps:
            line = step.node.lineno
            before = [each for each in blocks if each[0].node.lineno < line and together(each[0], step)]
            inside = any(self.scaled_call(item.context_expr) for node in step.blocks for item in node.items)
            if not before or line <= end_of_loop or isinstance(step.node, (ast.With, ast.If)):
                continue
            is_loop = isinstance(step.node, (ast.For, ast.While))
            nodes = list(ast.walk(step.node) if is_loop else step.expressions())
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            if any(self.scaled_call(call) or self._is_step(call) for call in calls) and is_loop:
                continue
            if any(map(self._clips, calls)) or (not inside and self._reads(nodes, params)):
                end_of_loop = max(getattr(node, "lineno", 0) for node in nodes) if is_loop else 0
                self._unscale(step, before[-1], blocks, ends, unscaled)
            elif any(map(_is_backward, calls)) and not (inside or is_loop):
                self.untouched[line] = PLAIN_BACKWARD

    def _unscale(self, step, last, blocks, ends, unscaled):
        """Note that gradients are unscaled before ``step``; ``last``: the block before it, and its ``scale_loss``."""
        reached = [end for end in ends if set(end.conditions) <= set(step.conditions)]
        optimizer = argument(last[1], 1, "optimizers")
        line, name = step.node.lineno, dotted(optimizer) if optimizer is not None else None
        if any(last[0].node.lineno < end.node.lineno < line for end in reached):
            return  # the step has unscaled them
        next_end = min([end.node.lineno for end in reached if end.node.lineno > line] or [line])
        if ends and not reached:
            self.untouched[line] = ONCE_PER_STEP.format("the optimizer steps less often")
        elif any(line < block.node.lineno < next_end and together(block, step) for block, _ in blocks):
            self.untouched[line] = ONCE_PER_STEP.format("another pass adds to them before the optimizer steps")
        elif any(name == done and _may_be_passed(first, step, ends) for first, done in unscaled):
            self.untouched[line] = (
                "these gradients may be unscaled already; call unscale_ once, after the backward pass"
            )
        elif name is None:
            self.untouched[line] = "which optimizer's gradients are unscaled here is not known"
        elif not any(name == done and _is_passed(first, step, ends) for first, done in unscaled):
            self.unscale[line] = name
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
                of_model = any(self.is_model(".".join(parts[:end])) for end in range(1, len(parts)))
                if (owner in params or of_model) and not any(node is each for each in ignored):
                    return True
        return False

    def _clips(self, call):
        """Return whether a call clips gradients or asks for the params whose gradients are clipped."""
        if self.bindings.full_name(call.func) in ("apex.amp.master_params", "apex.amp._amp_state.master_params"):
            return True
        return last_name(call.func) in CLIPS and bool(call.args) and is_parameters(call.args[0])

    def _is_step(self, call):
        return last_name(call.func) == "step" and self.is_optimizer(dotted(getattr(call.func, "value", call.func)))


def params_of(scope):
    """Return the names of a scope that stand for params: ``p`` of ``for p in model.parameters()``."""
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.comprehension)) and any(map(_gives_params, ast.walk(node.iter))):
            found |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    return found


def _gives_params(node):
    called = last_name(node.func) if isinstance(node, ast.Call) else None
    return called in ("parameters", "named_parameters", "master_params") or string(node) == "params"


def _is_passed(first, second, ends):
    """Return whether ``second`` always comes after ``first``, with no step of an optimizer between them."""
    return set(first.conditions) <= set(second.conditions) and not _ends_between(first, second, ends)


def _may_be_passed(first, second, ends):
    """Return whether ``second`` comes after ``first`` at times only, with no step of an optimizer between them."""
    is_always = set(first.conditions) <= set(second.conditions)
    return together(first, second) and not is_always and not _ends_between(first, second, ends)


def _ends_between(first, second, ends):
    return [end for end in ends if first.node.lineno < end.node.lineno < second.node.lineno]


def _is_backward(call):
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args


def _passed(call, function):
    """Yield (parameter, argument) of a call of a function."""
    parameters = [each.arg for each in function.args.args]
    if not any(isinstance(each, ast.Starred) for each in call.args):
        yield from zip(parameters, call.args)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def _computes(node):
    """Return whether a node calls a loss, or another function that autocast runs in float32."""
    name = (last_name(node.func) or "").lower() if isinstance(node, ast.Call) else ""
    return name in _FLOAT32 or any(word in name for word in _LOSSES)


def _short_names(body):
    """Yield (module, name) of torch's modules that a script imports by another name at its top."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((each.name, each.asname) for each in node.names if each.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from (("torch." + each.name, each.asname or each.name) for each in node.names)


def _fallback_names(nodes):
    """Yield the names that are set to None where an import fails."""
    for node in nodes:
        if isinstance(node, ast.Try):
            handled = [each for handler in node.handlers for each in handler.body if isinstance(each, ast.Assign)]
            for each in handled:
                if isinstance(each.value, (ast.Constant, getattr(ast, "NameConstant", ast.Constant))):
                    yield from (dotted(target) for target in each.targets if each.value.value is None)


def _used_names(node):
    """Return the names that a node of the script binds or reads, also as attributes of ``self``."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).partition(".")[0]}
    if isinstance(node, ast.Attribute) and dotted(node.value) == "self":
        return {node.attr}
    return {node.arg} if isinstance(node, ast.arg) else set()


def _names(node):
    each = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return {dotted(one) for one in each if one is not None and dotted(one)}


def _free(name, used):
    while name in used:
        name = "grad_" + name if name == "scaler" else name + "_"
    return name
