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
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}

    def of(self, made):
        """Return the names of the models whose params an optimizer trains, as a list without repetitions.

        Args:
            made: the ``MadeOptimizer``.

        Returns:
            The names, each the shortest that the script calls: ``model``, of an optimizer of
            ``model.head.parameters()``. Empty where one is not known or not called.
        """
        owners = self._owners(made.call, made.name, set())
        owners = owners or [name for name in self._named_in(made.call) if self.is_called(name)]
        found = [self._called_prefix(owner) for owner in owners]
        return [] if None in found else list(dict.fromkeys(found))

    def aliases(self, name):
        """Return the last parts of the names under which a variable is known: parameters of functions that get it."""
        found, before = {_last(name)}, 0
        while len(found) != before:
            before = len(found)
            for call in self._calls:
                function = self.functions.get(last_name(call.func))
                for parameter, value in _passed(call, function) if function is not None else ():
                    found |= {parameter} if _last(dotted(value)) in found else set()
        return found

    def is_called(self, name):
        """Return whether the script calls a model, by any of its names, or wraps it and calls that."""
        known = self.aliases(name)
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and self.wraps(node.value, known):
                known |= {_last(dotted(target)) for target in node.targets}
        return any(_last(dotted(call.func)) in known and self._is_variable(call.func) for call in self._calls)

    def wraps(self, call, known, wrappers=WRAPPERS):
        """Return whether a call wraps a model that is known by the last part of its name."""
        is_wrapper = self._names.of(call.func) in wrappers
        return is_wrapper and bool(call.args) and _last(dotted(call.args[0])) in known

    def _is_variable(self, node):
        name = dotted(node) or ""
        return self._names.of(node) == name and name not in self.functions

    def _called_prefix(self, owner):
        parts = owner.split(".")
        prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((each for each in prefixes if each not in ("", "self") and self.is_called(each)), None)

    def _owners(self, node, name, seen):
        """Return ``model`` for each ``model.parameters()`` in an expression, or in what its variables were made of."""
        found = []
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and each.attr in _PARAMS:
                found.append(_base(each.value))
        if found:
            return found
        for each in ast.walk(node):
            variable = each.id if isinstance(each, ast.Name) else None
            if variable is not None and variable not in seen and variable != name:
                seen.add(variable)
                for value in self._values(variable):
                    found += self._owners(value, name, seen)
        return found

    def _values(self, variable):
        """Yield the expressions that a variable is assigned, is extended by, or runs through."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and any(dotted(target) == variable for target in node.targets):
                if not isinstance(node.value, ast.Call) or self._names.of(node.value.func) in ("list", "filter"):
                    yield node.value
            elif isinstance(node, ast.AugAssign) and dotted(node.target) == variable:
                yield node.value
            elif isinstance(node, ast.For) and variable in {dotted(each) for each in ast.walk(node.target)}:
                yield node.iter
            elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend") and node.args:
                if dotted(node.func.value) == variable:
                    yield node.args[0]

    def _named_in(self, call):
        """Return the names in the arguments of a call, and the owner of its method: ``model.make_optimizer(lr)``."""
        values = call.args + [each.value for each in call.keywords]
        names = [dotted(each) for each in values] + [(dotted(call.func) or "").rpartition(".")[0]]
        return [name for name in names if name]


def _base(node):
    """Return ``self.model`` of ``self.model[0]``; "" where it is no variable."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node) or ""


def _last(name):
    return (name or "").rpartition(".")[2]


def _passed(call, function):
    """Yield (parameter, argument) of a call of a function, or of a method without its ``self``."""
    parameters = [each.arg for each in function.args.args]
    if parameters[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        parameters = parameters[1:]
    if not any(isinstance(each, ast.Starred) for each in call.args):
        yield from zip(parameters, call.args)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)
