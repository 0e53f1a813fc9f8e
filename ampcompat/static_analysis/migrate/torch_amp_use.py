"""The script's own ``torch.autocast`` regions and ``GradScaler``, which an opt level replaces."""

import ast

from ..reading.names import dotted, last_name
from ..reading.torch_amp import TorchAmp

#: Options of both ``GradScaler`` and ``amp.initialize``.
_OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_STATE = ("state_dict", "load_state_dict")


class TorchAmpUse:
    """The uses of torch.amp in a script, by line.

    Args:
        source: its ``Source``.
        models: its ``TrainedModels``.
        refuse: raises an error, given a line and the message.

    Attributes:
        removed: lines of statements that are removed.
        unwrapped: line of a ``with`` -> the indices of its items that are removed.
        undecorated: lines of decorators that are removed.
        steps: line of ``scaler.step(optimizer)`` -> the optimizer's name.
        losses: line of ``scaler.scale(loss).backward()`` -> the call of ``scale``.
        states: (line, column) of the calls of the scaler's ``state_dict`` and ``load_state_dict``.
        options: (name, source of the value) of ``amp.initialize`` that the ``GradScaler`` gets.
        scalers: the variables that are scalers.

    Raises:
        AmpError: something cannot be removed without changing the results of the script.
    """

    def __init__(self, source, models, refuse):
        self._nodes, self._names, self._models, self._refuse_line = source.nodes, source.names, models, refuse
        self._amp, self._position = TorchAmp(source), source.position
        self.removed, self.unwrapped, self.undecorated = set(), {}, set()
        self.steps, self.losses, self.states, self.options, self.scalers = {}, {}, set(), [], set()
        self._find_scalers()
        self._find_regions()

    def _refuse(self, node, text):
        self._refuse_line(node.lineno, text)

    # -- GradScaler ----------------------------------------------------------------------------------------------------

    def _find_scalers(self):
        made = self._amp.made_scalers
        for node in made:
            self.scalers |= self._models.aliases(self._models.variables.of(node.targets[0]))
        known = [call for calls in made.values() for call in calls]
        for call in self._amp.scalers:
            if call not in known:
                self._refuse(call, "a GradScaler that is not assigned to a variable; assign it, or remove it.")
        if not made:
            return
        is_used_otherwise = self._find_scaler_calls()
        for node, calls in made.items():
            self._take_options(calls)
            if not is_used_otherwise:
                self.removed.add(node.lineno)

    def _take_options(self, calls):
        for call in calls:
            given = {each.arg: each.value for each in call.keywords}
            is_positional = len(call.args) > (self._names.of(call.func) == "torch.amp.GradScaler")
            options = [name for name in _OPTIONS if name in given]
            if None in given or is_positional or (options and "enabled" in given):
                self._refuse(
                    call, "options of this GradScaler that are positional, or depend on `enabled`; remove them."
                )
            self.options += [(name, given[name]) for name in options]

    def _find_scaler_calls(self):
        """Note the method calls of scalers; return whether they are used for anything else."""
        statements = {id(node.value): node for node in self._nodes if isinstance(node, ast.Expr)}
        counted, owners = 0, 0
        for node in self._nodes:
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                counted += self._models.variables.of(node) in self.scalers
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if self._models.variables.of(node.func.value) in self.scalers:
                owners += 1
                self._note_call(node, statements)
        return counted > owners

    def _note_call(self, call, statements):
        name, is_statement = call.func.attr, id(call) in statements
        if name in ("unscale_", "update") and is_statement and (name == "unscale_" or not call.args):
            self.removed.add(call.lineno)
        elif name == "step" and is_statement and len(call.args) == 1 and dotted(call.args[0]):
            self.steps[call.lineno] = dotted(call.args[0])
        elif name == "scale" and len(call.args) == 1 and self._is_backward_of(call, statements):
            self.losses[call.lineno] = call
        elif name in _STATE:
            self.states.add(self._position(call))
        else:
            self._refuse(
                call,
                f"GradScaler's {name} in this place has no equivalent in amp; remove it: gradients are unscaled after "
                "amp.scale_loss, and step() is skipped after an overflow.",
            )

    def _is_backward_of(self, call, statements):
        outer = (each.value for each in statements.values() if isinstance(each.value, ast.Call))
        return any(last_name(each.func) == "backward" and getattr(each.func, "value", None) is call for each in outer)

    # -- autocast ------------------------------------------------------------------------------------------------------

    def _find_regions(self):
        """Note the regions, and refuse those that do not simply cast."""
        variables = {dotted(node.targets[0]): node for node in self._amp.made_regions}
        known = {id(call) for calls in self._amp.made_regions.values() for call in calls}
        entered = 0
        for node in self._nodes:
            if isinstance(node, (ast.With, ast.AsyncWith)):
                items = [item.context_expr for item in node.items]
                going = [at for at, each in enumerate(items) if self._is_region(each, variables)]
                known |= {id(items[at]) for at in going}
                entered += sum(not isinstance(items[at], ast.Call) for at in going)
                self.unwrapped.update({node.lineno: going} if going else {})
            elif isinstance(node, ast.FunctionDef):
                decorators = list(filter(self._amp.is_region, node.decorator_list))
                known |= set(map(id, decorators))
                self.undecorated |= {each.lineno for each in decorators}
        self._refuse_others(known, variables, entered)

    def _is_region(self, node, variables):
        return self._amp.is_region(node) or dotted(node) in variables

    def _refuse_others(self, known, variables, entered):
        for node in self._amp.regions:
            if id(node) not in known:
                self._refuse(
                    node, "an autocast region that is not entered with `with` here; enter it there, or remove it."
                )
        read = [node for node in self._nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
        uses = [node for node in read if dotted(node) in variables]
        if len(uses) > entered:
            self._refuse(
                uses[0], f"the autocast region {dotted(uses[0])} is passed on; only enter it with `with`, or remove it."
            )
        self.removed |= {node.lineno for node in variables.values()}
        self._refuse_disabled(self._amp.regions)

    def _refuse_disabled(self, regions):
        """Refuse regions that may be disabled while others are not."""
        in_forward = {id(each) for node in self._nodes if isinstance(node, ast.FunctionDef) and node.name == "forward"
                      for each in ast.walk(node)}  # fmt: skip
        told = {id(node): self._enabled(node) for node in regions}
        for node in regions:
            enabled = told[id(node)]
            if enabled == "False" or (enabled != "True" and (id(node) in in_forward or len(set(told.values())) > 1)):
                self._refuse(
                    node,
                    "this autocast region may be one that computes in float32, which amp.initialize does not know; use "
                    "run --opt-level, which does, or cast to float32 there.",
                )

    def _enabled(self, call):
        """Return the expression that decides whether a region casts, as text; "True" if there is none."""
        value = self._amp.enabled(call)
        if value is None:
            return "True"
        is_constant = type(value).__name__ in ("Constant", "NameConstant")  # the second in Python 3.7
        return str(value.value) if is_constant else ast.dump(value)
