"""How a file without Apex trains: backward passes, optimizers, and reasons why some or all levels are impossible."""

import ast
import re

from .calls import is_backward, is_half_cast
from .names import called, dotted, last_name

#: Written out, as in ``cli.run``: ``check`` does not need torch.
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
#: A Python file with this has its own levels.
AMPCOMPAT = re.compile(rb"^\s*(from|import)\s+ampcompat\b", re.MULTILINE)
#: Full names of classes that run the backward pass themselves.
TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "accelerate.Accelerator")
TRAINERS += ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer")
TRAINERS += ("lightning.Fabric", "lightning.fabric.Fabric")
#: Functions of torch.func and functorch that compute gradients of params.
_FUNCTIONAL = ("grad", "grad_and_value", "make_functional", "make_functional_with_buffers")
_GRADIENT_HOOKS = ("register_post_accumulate_grad_hook", "register_hook", "register_full_backward_hook")
_OPTIMIZER = re.compile(r"torch\.optim\.((?!lr_scheduler|swa_utils)[a-z]\w*\.)?[A-Z]\w*$")


class LoopsWithoutApex:
    """The parts of a ``Source`` that concern training without Apex.

    Attributes:
        backward_calls: the calls ``loss.backward()``.
        trainers: full names of the classes of ``TRAINERS`` that it uses.
        optimizers: the statements ``name = call`` that create an optimizer, by line.
        limits: (``Problem``, the levels that cannot be forced because of it) pairs.
    """

    def __init__(self, source):
        self._source, self._full_name = source, source.names.of
        calls = list(source.calls())
        self.backward_calls = [call for call in calls if is_backward(call)]
        used = {self._full_name(node) for node in source.nodes if isinstance(node, (ast.Name, ast.Attribute))}
        self.trainers = sorted(used & set(TRAINERS))
        self.optimizers = self._made_optimizers(calls)
        self._functional = [call for call in calls if self._is_functional(call)]
        self.limits = self._found_limits(calls)

    @property
    def trains(self):
        """Whether the file itself has a backward pass, or leaves it to a trainer."""
        return bool(self.backward_calls or self.trainers or (self._functional and self.optimizers))

    def _made_optimizers(self, calls):
        """Return the optimizers created by ``torch.optim``, or assigned to a variable whose ``step`` is called."""
        stepped = {dotted(call.func.value) for call in calls if getattr(call.func, "attr", None) == "step"}
        stepped |= {dotted(call.args[0]) for call in calls if last_name(call.func) == "step" and call.args}
        own = {node.name for node in self._source.nodes if isinstance(node, ast.ClassDef) and _is_optimizer_class(node)}
        found = []
        for node in self._source.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(node.targets) != 1:
                continue
            name, made = dotted(node.targets[0]), self._full_name(node.value.func)
            is_optimizer = bool(_OPTIMIZER.match(made)) or made in own
            if name and (is_optimizer or (name in stepped and "opt" in name.rpartition(".")[2].lower())):
                found.append(node)
        return sorted(found, key=lambda each: each.lineno)

    def _is_first_fsdp(self, call):
        name = self._full_name(call.func)
        return name.startswith("torch.distributed.fsdp.") and name.endswith("FullyShardedDataParallel")

    def _is_functional(self, call):
        package, _, name = self._full_name(call.func).rpartition(".")
        return package in ("torch.func", "functorch") and name in _FUNCTIONAL

    # -- reasons why levels cannot be forced ---------------------------------------------------------------------------

    def _found_limits(self, calls):
        source = self._source
        found = [*self._tensors_without_module(), *self._casts_by_hand()]
        found += [source.problem("first-fsdp", call) for call in calls if self._is_first_fsdp(call)]
        if not self.backward_calls and self.optimizers:
            found += [source.problem("functional-gradients", call) for call in self._functional]
        limits = [(each, LEVELS) for each in found]
        limits += [(each, ("O1", "O2")) for each in self._steps_in_hooks(calls)]
        return limits + [(each, ("O2", "O5")) for each in self._inner_steps()]

    def _tensors_without_module(self):
        for _, steps in self._source.scopes:
            values = {}
            for step in steps:
                if isinstance(step.node, ast.Assign) and len(step.node.targets) == 1:
                    values[dotted(step.node.targets[0])] = step.node.value
                if step.node in self.optimizers:
                    args = step.node.value.args
                    if args and self._are_tensors(args[0], values):
                        yield self._source.problem("optimizer-of-tensors", step.node, dotted(step.node.targets[0]))

    def _are_tensors(self, node, values):
        """Return whether an argument is a list of tensors that are created in the same scope."""
        elements = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
        return bool(elements) and all(self._is_tensor(values.get(each.id, each) if isinstance(each, ast.Name) else each)
                                      for each in elements)  # fmt: skip

    def _is_tensor(self, node):
        if called(node) in ("requires_grad_", "Parameter"):
            return True
        has_gradient = isinstance(node, ast.Call) and any(each.arg == "requires_grad" for each in node.keywords)
        return has_gradient and self._full_name(node.func).startswith("torch.")

    def _casts_by_hand(self):
        """Yield problems with models that are cast after their optimizer was created in the same scope."""
        for _, steps in self._source.scopes:
            trained = set()
            for step in steps:
                for call in step.calls():
                    if is_half_cast(call, self._source.names) and dotted(call.func.value) in trained:
                        yield self._source.problem("cast-by-hand", call, dotted(call.func.value))
                if step.node in self.optimizers:
                    trained |= {name for each in ast.walk(step.node.value) for name in prefixes(dotted(each))}

    def _steps_in_hooks(self, calls):
        stepping = {node.name for node in self._source.nodes if isinstance(node, ast.FunctionDef) and _steps(node)}
        for call in calls:
            if last_name(call.func) == "_apply_optimizer_in_backward":
                yield self._source.problem("step-in-backward", call)
            elif last_name(call.func) in _GRADIENT_HOOKS:
                lambdas = (each for each in call.args if isinstance(each, ast.Lambda))
                if {last_name(each) for each in call.args} & stepping or any(map(_steps, lambdas)):
                    yield self._source.problem("step-in-backward", call)

    def _inner_steps(self):
        for node in self._source.nodes:
            methods = node.body if isinstance(node, ast.ClassDef) and _is_optimizer_class(node) else ()
            for method in methods:
                if isinstance(method, ast.FunctionDef) and method.name != "step":
                    for inner in filter(_is_inner_step, ast.walk(method)):
                        yield self._source.problem("inner-step", inner, node.name + "." + method.name)


def _steps(function):
    return any(called(node) == "step" for node in ast.walk(function))


def _is_inner_step(node):
    """Return whether a node is ``self.base_optimizer.step(…)``."""
    name = dotted(node.func) or "" if isinstance(node, ast.Call) else ""
    return name.startswith("self.") and name.endswith(".step") and name.count(".") == 2


def _is_optimizer_class(node):
    return any(last_name(base) == "Optimizer" for base in node.bases)


def prefixes(name):
    """Return ``a`` and ``a.b`` of ``a.b.c``."""
    parts = (name or "").split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}
