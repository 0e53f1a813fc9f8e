"""Where ``amp.initialize`` and ``amp.scale_loss`` belong in a script without Apex."""

import ast

from ...errors import AmpError
from ..reading.apex_names_used import uses
from ..reading.calls import is_backward, is_half_cast
from ..reading.flow import together
from ..reading.loops_without_apex import AMPCOMPAT, LoopsWithoutApex
from ..reading.names import called, dotted, inside, last_name, names_used
from ..reading.source import Source
from .torch_amp_use import TorchAmpUse
from .trained_models import PARALLEL, MovedWrapper, TrainedModels

_NO_STATEMENT = "this backward pass is no statement `loss.backward()` of one loss, in a function or at the top level."
_BLOCKS = ("body", "orelse", "finalbody")


class LevelPlan:
    """The changes to a script for a level, by line.

    Args:
        text: the source, with one statement per line.
        level: such as "O5".
        path: for messages.
        old_lines: line of the source -> line of the original script, for messages.

    Attributes:
        amp: the name of ``amp`` in the new script.
        scaled: the name of the scaled loss.
        torch_amp: ``TorchAmpUse``.
        moved: the ``MovedWrapper``, or None; its statement comes after ``amp.initialize``.
        before, after: line of the statement before, or after which ``amp.initialize`` is called; the other is None.
        models, optimizers: the names of its arguments.
        allows_half: whether a model may already be half, loaded or cast.
        backward: line of a backward pass -> the names of the optimizers whose gradients it computes.

    Raises:
        AmpError: the script cannot be rewritten reliably; the message gives the line.
    """

    def __init__(self, text, level, path, old_lines):
        self._path, self._old_lines = path, old_lines
        self._source = source = Source(path, text.encode("utf-8"))
        self._loops = loops = LoopsWithoutApex(source)
        self._check_script(source, text, level)
        self._models = TrainedModels(source)
        self._variables = self._models.variables
        self.torch_amp = TorchAmpUse(source, self._models, self._refuse)
        used = names_used(source.nodes)
        self.amp = "amp" if "amp" not in used else "ampcompat_amp"
        self.scaled = "scaled_loss" if "scaled_loss" not in used else "amp_scaled_loss"
        self.allows_half = any(map(self._makes_half, source.calls()))
        self._scopes = source.scopes
        scope, steps = self._scope_of_optimizers()
        self.optimizers = list(dict.fromkeys(dotted(made.targets[0]) for made in loops.optimizers))
        self.models, self.moved = self._trained(), None
        self.before, self.after = self._place(scope, steps)
        variables = [self._variables.of(made.targets[0]) for made in loops.optimizers]
        self._stepping = {each for variable in variables for each in self._models.aliases(variable)}
        self.backward = dict(self._backward_passes())
        for call in loops.backward_calls:
            if call.lineno not in self.backward:  # in a lambda, or in a statement that is not searched
                self._refuse(call.lineno, _NO_STATEMENT)

    def _refuse(self, line, text):
        raise AmpError(f"{self._path}:{self._old_lines[line]}: {text}" if line else f"{self._path} {text}")

    def _check_script(self, source, text, level):
        loops = self._loops
        if uses(source) or AMPCOMPAT.search(text.encode("utf-8")):
            self._refuse(
                0, f"uses Apex or ampcompat already; change its opt_level to {level}, or run it with --opt-level."
            )
        if loops.trainers:
            self._refuse(
                0,
                f"leaves the backward pass to {loops.trainers[0]}, so there is no line to write the level into; keep "
                f"it on the command line: ampcompat run --opt-level {level} {self._path}",
            )
        for problem, levels in loops.limits:
            if level in levels:
                self._refuse(problem.place.line, problem.message)
        for node in source.nodes:
            if called(node) == "backward" and node.args and not is_backward(node):
                self._refuse(node.lineno, _NO_STATEMENT)
        if not loops.backward_calls:
            self._refuse(0, "has no loss.backward(); give the file with the training loop, or use run --opt-level.")
        if not loops.optimizers:
            self._refuse(
                0,
                "makes no optimizer that is assigned to a variable; amp.initialize needs it in the file of the "
                "training loop. Use run --opt-level, or call amp.initialize where it is made.",
            )

    def _makes_half(self, call):
        """Return whether a call casts to half, or loads a model in a dtype that may be half."""
        options = {each.arg for each in call.keywords}
        is_loaded = called(call) == "from_pretrained" and options & {"torch_dtype", "dtype"}
        return bool(is_loaded) or is_half_cast(call, self._source.names)

    # -- amp.initialize ------------------------------------------------------------------------------------------------

    def _scope_of_optimizers(self):
        """Return the function or module in which all optimizers are created, and its steps."""
        statements = set(self._loops.optimizers)
        found = [each for each in self._scopes if any(step.node in statements for step in each[1])]
        if sum(step.node in statements for _, steps in found for step in steps) < len(statements):
            self._refuse(
                min(each.lineno for each in statements),
                "this optimizer is created neither in a function nor at the top level.",
            )
        if len(found) != 1:
            first, second = (next(step for step in steps if step.node in statements) for _, steps in found[:2])
            self._refuse(
                second.node.lineno,
                f"this optimizer is created in a different function than that of line {first.node.lineno}; "
                "amp.initialize gets all of them in one call. Make them in one function, or use run --opt-level.",
            )
        return found[0]

    def _trained(self):
        found = []
        for made in self._loops.optimizers:
            models = self._models.of(made)
            if not models:
                self._refuse(
                    made.lineno,
                    f"no model that this script calls is seen whose params {dotted(made.targets[0])} trains; call "
                    "amp.initialize there by hand, or use run --opt-level.",
                )
            found += models
        return list(dict.fromkeys(found))

    def _place(self, scope, steps):
        """Return (line of the statement before which ``amp.initialize`` is called, line of that after which it is)."""
        made = self._loops.optimizers
        known = {self._variables.like(made[-1], name) for name in self.models}
        known = {alias for variable in known for alias in self._models.aliases(variable)}
        block = _block_of(scope.body, made)
        last = max(at for at, each in enumerate(block) if any(node in made for node in ast.walk(each)))
        before = [step.node for step in steps if step.node.lineno < made[-1].lineno]
        wraps = [each for each in before if self._makes_parallel(each, known)]
        if wraps:
            self._move(wraps, block, last)
            return None, block[last].lineno
        training = self._training_functions(known)
        for at in range(last + 1, len(block)):
            if isinstance(block[at], ast.Return) or self._trains(block[at], known, training):
                is_definition = isinstance(block[at - 1], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                return (block[at].lineno, None) if is_definition else (None, block[at - 1].lineno)
        return None, block[-1].lineno

    def _move(self, wraps, block, last):
        self.moved = MovedWrapper(wraps, block, last, self._models, self._source)
        if self.moved.statement is None:
            self._refuse(
                wraps[0].lineno,
                "the model is wrapped before its optimizer is made, and amp.initialize must come between; make the "
                "optimizer first.",
            )
        self.models = list(dict.fromkeys(self.moved.models.get(each, each) for each in self.models))

    def _makes_parallel(self, statement, known):
        """Return whether a statement assigns a data-parallel wrapper, or wraps a model."""
        if not isinstance(statement, ast.Assign):
            return False
        calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
        names = known & set(map(self._variables.of, statement.targets))
        return any(self._source.names.of(call.func) in PARALLEL for call in calls) and (
            bool(names) or any(self._models.wraps(call, known, PARALLEL) for call in calls)
        )

    def _training_functions(self, known):
        """Return the names of functions that call a model or a backward pass, directly or through other functions."""
        found, before = set(), -1
        while len(found) != before:
            before = len(found)
            for name, node in self._models.functions.items():
                if any(self._trains(each, known, found) for each in node.body):
                    found.add(name)
        return found - {"forward"}

    def _trains(self, statement, known, functions):
        """Return whether a statement calls a model, wraps it, has a backward pass, or calls a function that does."""
        for node in inside([statement]):
            if isinstance(node, ast.Call):
                name = last_name(node.func)
                if is_backward(node) or name in functions or self._models.wraps(node, known):
                    return True
                if self._variables.of(node.func) in known:
                    return True
                if name == "step" and any(last_name(each) in functions for each in node.args):  # a closure
                    return True
        return False

    # -- amp.scale_loss ------------------------------------------------------------------------------------------------

    def _backward_passes(self):
        closures = self._closures()
        for scope, steps in self._scopes:
            for at, step in enumerate(steps):
                if not any(map(is_backward, step.calls())):
                    continue
                call = getattr(step.node, "value", None)
                if not isinstance(step.node, ast.Expr) or not is_backward(call) or _has_gradient(call):
                    self._refuse(step.node.lineno, _NO_STATEMENT)
                names = closures.get(getattr(scope, "name", None)) or self._stepped_after(steps, at)
                if not names:
                    self._refuse(
                        step.node.lineno,
                        "no step of an optimizer is seen in the function of this backward pass, so which gradients it "
                        "computes is not known; put both into one function, or use run --opt-level.",
                    )
                yield step.node.lineno, names

    def _closures(self):
        """Return function -> the optimizers whose ``step`` gets it."""
        found = {}
        for node in self._source.nodes:
            if called(node) == "step" and len(node.args) == 1:
                optimizer = self._optimizer(node)
                if optimizer and isinstance(node.args[0], ast.Name):
                    found.setdefault(node.args[0].id, []).append(optimizer)
        return found

    def _optimizer(self, call):
        """Return the name of the optimizer, as written, if a call is its ``step``."""
        name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) and call.func.attr == "step" else None
        if call.lineno in self.torch_amp.steps:
            name = self.torch_amp.steps[call.lineno]
        return name if name and self._variables.like(call, name) in self._stepping else None

    def _stepped_after(self, steps, at):
        """Return the optimizers that step after a backward pass and before the next one, as a list."""
        following = steps[at + 1 :] + (steps[:at] if steps[at].loops else [])
        found = []
        for step in following:
            if not together(step, steps[at]):
                continue
            if found and any(map(is_backward, step.calls())):
                break
            found += [name for name in map(self._optimizer, step.calls()) if name and name not in found]
        return found


def _has_gradient(call):
    """Return whether a backward pass gets other arguments than options."""
    return bool(call.args) or any(each.arg not in ("retain_graph", "create_graph", "inputs") for each in call.keywords)


def _block_of(body, statements):
    """Return the innermost list of statements that contains all of some statements."""
    for each in body:
        blocks = [getattr(each, name, []) for name in _BLOCKS] + [part.body for part in getattr(each, "handlers", [])]
        for block in blocks:
            if set(statements) <= {node for inner in block for node in ast.walk(inner)}:
                return _block_of(block, statements)
    return body
