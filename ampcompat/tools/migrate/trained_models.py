"""Which models the optimizers of a script without Apex train, by which names, and where the script calls them."""

import ast

from ..check.bindings import dotted, last_name

#: What wraps a model that is called then. The first two must come after ``amp.initialize``.
PARALLEL = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.DataParallel")
WRAPPERS = PARALLEL + (
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.compile",
    "torch.distributed.fsdp.fully_shard",
)
_PARAMS = ("parameters", "named_parameters")


class TrainedModels:
    """Names of models, in a script without Apex.

    Args:
        nodes: the nodes of its syntax tree.
        names: its ``FullNames``.
    """

    def __init__(self, nodes, names):
        self._nodes, self._names = nodes, names
        # What a forward method calls is a part of the model whose forward it is.
        methods = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "forward"]
        inner = {id(each) for method in methods for each in ast.walk(method)}
        self._calls = [node for node in nodes if isinstance(node, ast.Call) and id(node) not in inner]
        names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        self._variables = {node.id for node in names} | {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}

    def of(self, made):
        """Return the names of the models whose params an optimizer trains, as a list without repetitions.

        Args:
            made: the ``MadeOptimizer``.

        Returns:
            The names, each the shortest that the script calls: ``model``, of an optimizer of
            ``model.head.parameters()``. Empty where one is not known or not called.
        """
        owners = self._owners(made.call, {made.name}) or self._behind(made.call, {made.name})
        found = [self._called_prefix(owner) for owner in owners]
        return [] if None in found else list(dict.fromkeys(found))

    def aliases(self, name):
        """Return all names of a variable: also other variables, and parameters of functions that get it."""
        found, before = {name}, 0
        while len(found) != before:
            before = len(found)
            for node in self._nodes:
                if isinstance(node, ast.Assign) and dotted(node.value) in found:
                    found |= {dotted(target) for target in node.targets if dotted(target)}
                function = self.functions.get(last_name(node.func)) if isinstance(node, ast.Call) else None
                for parameter, value in _passed(node, function) if function is not None else ():
                    found |= {parameter} if dotted(value) in found else set()
        return found

    def is_called(self, name):
        """Return whether the script calls a model, by any of its names, or wraps it and calls that."""
        known = self.aliases(name)
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and self.wraps(node.value, known):
                known |= {alias for target in node.targets for alias in self.aliases(dotted(target))}
        return self._is_variable(name) and any(dotted(call.func) in known for call in self._calls)

    def wraps(self, call, known, wrappers=WRAPPERS):
        """Return whether a call wraps a model that has one of some names."""
        return self._names.of(call.func) in wrappers and bool(call.args) and dotted(call.args[0]) in known

    def _is_variable(self, name):
        """Return whether a dotted name begins with a variable: not a module, a class or a function."""
        return name.partition(".")[0] in self._variables

    def _called_prefix(self, owner):
        parts = owner.split(".")
        prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((each for each in prefixes if each not in ("", "self") and self.is_called(each)), None)

    def _owners(self, node, seen):
        """Return ``model`` for each ``model.parameters()`` in an expression, or in what its variables were made of."""
        found = [
            _base(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in _PARAMS
        ]
        if found:
            return found
        for variable in _variables(node) - seen:
            seen.add(variable)
            for value in self._values(variable):
                is_made = isinstance(value, ast.Call) and self._names.of(value.func) not in ("list", "filter")
                found += self._owners(value, seen | (_variables(value) if is_made else set()))
        return found

    def _values(self, variable):
        """Yield the expressions that a variable is assigned, is extended by, or runs through."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and any(dotted(target) == variable for target in node.targets):
                yield node.value
            elif isinstance(node, ast.AugAssign) and dotted(node.target) == variable:
                yield node.value
            elif isinstance(node, ast.For) and variable in {dotted(each) for each in ast.walk(node.target)}:
                yield node.iter
            elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend") and node.args:
                if isinstance(node.func, ast.Attribute) and dotted(node.func.value) == variable:
                    yield node.args[0]

    def _behind(self, node, seen):
        """Return the models among the arguments of a call and the owner of its method, or of calls that made those.

        ``model``, of ``model.make_optimizer(lr)`` and of ``make_optimizer(groups)`` after ``groups = split(model)``.
        """
        names = sorted(_variables(node))
        if isinstance(node, ast.Call):
            names = [(dotted(node.func) or "").rpartition(".")[0]] + [dotted(each) for each in node.args]
            names += [dotted(each.value) for each in node.keywords]
        names = [name for name in names if name and self._is_variable(name) and name not in seen]
        seen |= set(names)
        found = [name for name in names if self.is_called(name)]
        for name in names if not found else ():
            for value in self._values(name):
                found += self._behind(value, seen)
        return found


def _base(node):
    """Return ``self.model`` of ``self.model[0]``; "" where it is no variable."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node) or ""


def _variables(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _passed(call, function):
    """Yield (parameter, argument) of a call of a function, or of a method without its ``self``."""
    parameters = [each.arg for each in function.args.args]
    if parameters[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        parameters = parameters[1:]
    if not any(isinstance(each, ast.Starred) for each in call.args):
        yield from zip(parameters, call.args)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)
