"""The models that the optimizers of a script without Apex train, where it calls them, and a wrapper that is moved."""

import ast

from ..reading.calls import passed
from ..reading.names import VariableNames, as_written, inside, last_name

#: Wrappers of a model that are called instead of it. The first two must come after ``amp.initialize``.
PARALLEL = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.DataParallel")
WRAPPERS = PARALLEL + (
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.compile",
    "torch.distributed.fsdp.fully_shard",
)
_PARAMS = ("parameters", "named_parameters")
#: Attributes of a wrapper that may be read before it is moved, since they are those of the wrapped model.
_SAME = ("parameters",)


class TrainedModels:
    """The variables of models, in a script without Apex.

    Args:
        source: its ``Source``.

    Attributes:
        variables: its ``VariableNames``, which name the variables.
        functions: name -> the function, of all functions and methods.
    """

    def __init__(self, source):
        self._nodes, self._names, nodes = source.nodes, source.names, source.nodes
        self.variables = VariableNames(nodes[0])
        # Modules called in a forward method are part of that method's model.
        methods = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "forward"]
        inner = {id(each) for method in methods for each in ast.walk(method)}
        self._calls = [node for node in nodes if isinstance(node, ast.Call) and id(node) not in inner]
        stored = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        self._stored = {self.variables.of(node) for node in stored}
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self._handed_on = list(self._assigned()) + list(self._passed_on())

    def _assigned(self):
        """Yield (variable, variable that is assigned its value), also where a function returns the value."""
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                function = self._function(node.value)
                values = [node.value] if function is None else _returned(function)
                for value in values:
                    for target in node.targets:
                        yield from self._pairs(value, target)

    def _pairs(self, value, target):
        if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple):
            for one, other in zip(value.elts, target.elts):
                yield from self._pairs(one, other)
        elif self.variables.of(value) and self.variables.of(target):
            yield self.variables.of(value), self.variables.of(target)

    def _passed_on(self):
        """Yield (variable, parameter of a function that it is passed to)."""
        for node in self._nodes:
            function = self._function(node)
            for parameter, value in passed(node, function) if function is not None else ():
                if self.variables.of(value):
                    yield self.variables.of(value), self.variables.parameter(function, parameter)

    def _function(self, node):
        return self.functions.get(last_name(node.func)) if isinstance(node, ast.Call) else None

    def of(self, made):
        """Return the names of the models whose params an optimizer trains, as a list without duplicates.

        Args:
            made: the assignment that creates it.

        Returns:
            The names, as written where the optimizer is created, each the shortest that the script calls: ``model`` for
            an optimizer of ``model.head.parameters()``. Empty if one is unknown or not called.
        """
        target = made.targets[0]
        own = {self.variables.of(target)}
        owners = self._owners(made.value, set(own)) or self._behind(made.value, own)
        found = [self._seen_from(target, self._called_prefix(owner)) for owner in owners]
        return [] if None in found else list(dict.fromkeys(found))

    def _seen_from(self, node, variable):
        """Return the name of a variable at a node, or None."""
        if variable is None:
            return None
        known = [variable] + sorted(self.aliases(variable) - {variable})
        return next((as_written(each) for each in known if self.variables.like(node, as_written(each)) == each), None)

    def aliases(self, variable):
        """Return all variables with the value of one: those that it is assigned from, and those assigned from these."""
        found = {variable} | {value for value, other in self._handed_on if other == variable}
        before = 0
        while len(found) != before:
            before = len(found)
            found |= {other for value, other in self._handed_on if value in found}
        return found

    def is_called(self, variable):
        """Return whether the script calls a model, by any of its names, or wraps it and calls that."""
        known, wrapped = self.aliases(variable), None
        while wrapped != known:
            wrapped = set(known)
            for node in self._nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and self.wraps(node.value, known):
                    known |= {each for target in node.targets for each in self.aliases(self.variables.of(target))}
        return self._is_variable(variable) and any(self.variables.of(call.func) in known for call in self._calls)

    def wraps(self, call, known, wrappers=WRAPPERS):
        """Return whether a call wraps one of some variables."""
        return self._names.of(call.func) in wrappers and bool(call.args) and self.variables.of(call.args[0]) in known

    def _is_variable(self, name):
        """Return whether a name begins with a variable: not a module, a class or a function."""
        return name != as_written(name) or name.partition(".")[0] in self._stored

    def _called_prefix(self, owner):
        place = owner[: len(owner) - len(as_written(owner))]
        parts = as_written(owner).split(".")
        prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next(
            (place + each for each in prefixes if each not in ("", "self") and self.is_called(place + each)), None
        )

    def _owners(self, node, seen):
        """Return ``model`` for each ``model.parameters()`` in an expression, or in the values of its variables."""
        found = [
            self._base(each.value)
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and each.attr in _PARAMS
        ]
        if found:
            return found
        for variable in self._variables_in(node) - seen:
            seen.add(variable)
            for value in self._values(variable):
                is_made = isinstance(value, ast.Call) and self._names.of(value.func) not in ("list", "filter")
                found += self._owners(value, seen | (self._variables_in(value) if is_made else set()))
        return found

    def _values(self, variable):
        """Yield the expressions that a variable is assigned, extended with, or iterates over."""
        of = self.variables.of
        for node in self._nodes:
            if isinstance(node, ast.Assign) and any(of(target) == variable for target in node.targets):
                yield node.value
            elif isinstance(node, ast.AugAssign) and of(node.target) == variable:
                yield node.value
            elif isinstance(node, ast.For) and variable in {of(each) for each in ast.walk(node.target)}:
                yield node.iter
            elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend") and node.args:
                if isinstance(node.func, ast.Attribute) and of(node.func.value) == variable:
                    yield node.args[0]

    def _behind(self, node, seen):
        """Return the models among the arguments of a call and the object of its method, or of calls that created these.

        ``model``, of ``model.make_optimizer(lr)`` and of ``make_optimizer(groups)`` after ``groups = split(model)``.
        """
        names = sorted(self._variables_in(node))
        if isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            names = [self.variables.of(each) for each in [owner] + node.args + [each.value for each in node.keywords]]
        names = [name for name in names if name and self._is_variable(name) and name not in seen]
        seen |= set(names)
        found = [name for name in names if self.is_called(name)]
        for name in names if not found else ():
            for value in self._values(name):
                found += self._behind(value, seen)
        return found

    def _base(self, node):
        """Return ``self.model`` for ``self.model[0]``; "" if it is not a variable."""
        while isinstance(node, ast.Subscript):
            node = node.value
        return self.variables.of(node) or ""

    def _variables_in(self, node):
        return {self.variables.of(each) for each in ast.walk(node) if isinstance(each, ast.Name)}


def _returned(function):
    """Return the values that a function returns."""
    return [node.value for node in inside(function.body) if isinstance(node, ast.Return) and node.value is not None]


class MovedWrapper:
    """A statement such as ``model = DistributedDataParallel(model)`` that is moved after ``amp.initialize``.

    Args:
        wraps: the assignments of wrappers before the last optimizer is created.
        block: the statements that contain the creation of the optimizers.
        last: the place of the last of these in the block.
        trained: ``TrainedModels``.
        source: its ``Source``.

    Attributes:
        statement: the statement of the block that is moved, or None if it cannot be moved reliably.
        renamed: (line, column) of a name -> the name of the model that replaces it, since the wrapper comes later.
        models: the name of a wrapper -> that of the model in it.
    """

    def __init__(self, wraps, block, last, trained, source):
        self._of, self._names, self._position = trained.variables.of, source.names, source.position
        self.renamed, self.models = {}, {}
        holders = [each for each in block[:last] if any(node in wraps for node in ast.walk(each))]
        self.statement = holders[0] if len(holders) == 1 and self._can_move(holders[0], wraps, block, last) else None

    def _can_move(self, statement, wraps, block, last):
        parts = statement.body + statement.orelse if isinstance(statement, ast.If) else [statement]
        if not all(each in wraps and self._is_plain(each) for each in parts):
            return False
        for each in parts:
            self.models[each.targets[0].id] = each.value.args[0].id
        is_conditional = statement is not parts[0]
        if is_conditional and any(name != model for name, model in self.models.items()):
            return False  # if the condition is false, the wrapper's name means something else
        following = block[block.index(statement) + 1 : last + 1]
        wrappers = {self._of(each.targets[0]) for each in parts}
        read = {self._of(node) for node in ast.walk(statement)} - {None}
        return self._may_precede([node for each in following for node in ast.walk(each)], wrappers, read)

    def _is_plain(self, assignment):
        """Return whether an assignment is ``name = Wrapper(model, …)``."""
        value = assignment.value
        is_wrapper = isinstance(value, ast.Call) and self._names.of(value.func) in PARALLEL and bool(value.args)
        return is_wrapper and len(assignment.targets) == 1 and all(
            isinstance(each, ast.Name) for each in (assignment.targets[0], value.args[0])
        )  # fmt: skip

    def _may_precede(self, nodes, wrappers, read):
        """Return whether nodes read only attributes of the models from wrappers, and set nothing that the moved
        statement reads; note which names become the model's.
        """
        same = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in _SAME}
        for node in nodes:
            if isinstance(getattr(node, "ctx", None), ast.Store) and self._of(node) in read:
                return False
            if isinstance(node, ast.Name) and self._of(node) in wrappers:
                if id(node) not in same:
                    return False
                if self.models[node.id] != node.id:
                    self.renamed[self._position(node)] = self.models[node.id]
        return True
