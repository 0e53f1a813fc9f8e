"""Passes the new variables to the functions that read them: as parameters, results, or attributes of ``self``."""

import libcst as cst

from . import syntax
from .scopes import ScriptScopes
from .signature_rewriting import SignatureRewriter

DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
OPTIONAL = "{}() evaluates in float32 if its caller has no autocast"
MISSING = "{} needs {}: pass it here from {}"


class VariablePassing:
    """The variables to pass in a script, found in its new source.

    Args:
        module: the new module.
        variables: names of the new variables, in the order in which they are passed.

    Attributes:
        parameters: function node -> variables that it gets.
        arguments: call node -> variables that it passes.
        results: function node -> variables that it also returns.
        targets: statement node -> variables that it gets from a call.
        attributes: class node -> variables that are attributes of ``self``.
        missing: function node -> variables that cannot be passed to it.
        optional: function nodes with callers that have no autocast and evaluate in float32.
    """

    def __init__(self, module, variables):
        self._variables = variables
        self._script = ScriptScopes(module, set(variables))
        self.parameters, self.arguments, self.results, self.targets = {}, {}, {}, {}
        self.attributes, self.missing, self.optional = {}, {}, set()
        self._functions = self._script.functions()
        self._setters = [(scope, set(scope.sets)) for scope in self._script.scopes if scope.name]
        self._make_attributes()
        waiting = [(scope, name) for scope in self._script.scopes for name in sorted(scope.reads)]
        while waiting:
            scope, name = waiting.pop(0)
            if not self._is_attribute(scope, name) and not scope.has(name):
                waiting += self._provide(scope, name)

    @property
    def is_needed(self):
        """Whether functions get autocast settings that they do not set themselves."""
        passed = set().union(*self.parameters.values(), *self.results.values(), *self.missing.values())
        return bool(passed.intersection(self._variables[1:])) and not self.attributes

    def _ordered(self, names):
        return [each for each in self._variables if each in names]

    def _make_attributes(self):
        """Turn variables that one method sets and another reads into attributes."""
        for scope in self._script.scopes:
            if scope.is_method and scope.sets:
                others = [each for each in self._script.scopes if each.outermost() is not scope]
                inside = [each for each in others if each.outermost().parent is scope.parent]
                if any(scope.sets & each.reads for each in inside):
                    self.attributes.setdefault(scope.parent.node, set()).update(scope.sets)

    def _is_attribute(self, scope, name):
        owner = scope.outermost().parent
        return owner is not None and name in self.attributes.get(owner.node, ())

    def _provide(self, scope, name):
        """Pass a variable to a scope; return the (scope, name) pairs that now need it too."""
        source = self._source(scope, name)
        if source is not None:
            self._return(source, name)
            return []
        target = scope.outermost()
        callers = list(self._script.callers(target.name))
        is_plain = target.is_function and self._functions.get(target.name) is target
        can_pass = is_plain and target.name not in self._script.mentioned
        if can_pass and name == self._variables[1] and not self._is_made_before(target, name):
            self.optional.add(target.node)
            callers = [each for each in callers if self._can_get(each[0], name)]
        elif not can_pass or not self._is_made_before(target, name):
            self.missing.setdefault(target.node, set()).add(name)
            target.sets.add(name)
            return []
        self.parameters.setdefault(target.node, set()).add(name)
        target.sets.add(name)
        for _, call, _ in callers:
            self.arguments.setdefault(call, set()).add(name)
        return [(caller, name) for caller, _, _ in callers]

    def _is_there(self, scope, name):
        """Return whether a scope has a variable, or calls a function that can return it."""
        return scope.has(name) or self._is_attribute(scope, name) or self._source(scope, name) is not None

    def _can_get(self, caller, name):
        """Return whether a caller has a variable, or can get it from all of its own callers."""
        is_called = any(True for _ in self._script.callers(caller.outermost().name))
        return self._is_there(caller, name) or (is_called and self._is_made_before(caller, name))

    def _is_made_before(self, target, name):
        """Return whether every chain of calls to a function includes one that has the variable."""
        waiting, seen = [target], set()
        while waiting:
            scope = waiting.pop()
            if scope in seen or self._is_there(scope, name):
                continue
            seen.add(scope)
            outer = scope.outermost()
            if self._functions.get(outer.name) is not outer or outer.name in self._script.mentioned:
                return False  # the module itself, a method, or a function that is called by another name
            callers = [caller for caller, _, _ in self._script.callers(outer.name)]
            if not callers and outer is not target:
                return False  # called by another file
            waiting += callers
        return True

    def _source(self, scope, name):
        """Return a function that sets the variable, is called in the scope, and can return it; otherwise None."""
        for call, _ in scope.calls:
            function = self._functions.get(call.func.value)
            if function is not None and name in function.sets and name not in self.parameters.get(function.node, ()):
                if function is not scope and self._can_return(function):
                    return function
        return None

    def _can_return(self, function):
        """Return whether a function can return one more value: it has one ``return``, and all calls take its result."""
        callers = list(self._script.callers(function.name))
        if function.name in self._script.mentioned or not all(map(_is_always_reached, callers)):
            return False
        returns = [each for each in syntax.own_nodes(function.node.body) if isinstance(each, cst.Return)]
        lines = [statement.body[0] for _, _, statement in callers]
        if not returns:
            return all(isinstance(each, cst.Expr) for each in lines)
        last = function.node.body.body[-1]
        is_last = isinstance(last, cst.SimpleStatementLine) and last.body[0] is returns[0]
        if len(returns) > 1 or not is_last or returns[0].value is None:
            return False
        return all(_takes(each, returns[0].value) for each in lines)

    def _return(self, function, name):
        self.results.setdefault(function.node, set()).add(name)
        for caller, _, statement in self._script.callers(function.name):
            caller.sets.add(name)
            self.targets.setdefault(statement, set()).add(name)

    def transformer(self):
        """Return the transformer that passes the variables."""
        order = self._ordered
        chosen = (self.parameters, self.arguments, self.results, self.targets, self.attributes)
        marks = {node: self._missing_text(node, order(names)) for node, names in self.missing.items()}
        return SignatureRewriter(
            marks, self.optional, *[{node: order(names) for node, names in each.items()} for each in chosen]
        )

    def _missing_text(self, node, names):
        setters = sorted({scope.name + "()" for scope, sets in self._setters if sets & set(names)})
        name = node.name.value + "()" if isinstance(node, cst.FunctionDef) else "the script"
        return MISSING.format(name, " and ".join(names), " and ".join(setters))

    def left(self):
        """Return messages on what is left to do by hand."""
        return [self._missing_text(node, self._ordered(names)) for node, names in self.missing.items()]

    def notes(self):
        """Return notes on changes to signatures."""
        told = [(self.parameters, "{}() gets {}"), (self.results, "{}() also returns {}")]
        optional = [OPTIONAL.format(node.name.value) for node in self.optional]
        return optional + [
            text.format(node.name.value, " and ".join(self._ordered(names)))
            for chosen, text in told
            for node, names in chosen.items()
        ]


def _is_always_reached(caller):
    """Return whether a call is a separate statement, under no condition and in no loop."""
    scope, _, statement = caller
    body = list(scope.node.body.body if scope.is_function else scope.node.body)
    guards = [each.body.body for each in body if isinstance(each, cst.If) and "__main__" in syntax.text(each.test)]
    return statement is not None and any(statement is each for block in [body] + guards for each in block)


def _takes(line, value):
    """Return whether ``targets = f(...)`` unpacks a result in the way the function returns it."""
    if not isinstance(line, cst.Assign) or len(line.targets) != 1:
        return False
    target = line.targets[0].target
    if isinstance(value, cst.Tuple):
        return isinstance(target, cst.Tuple) and len(target.elements) == len(value.elements)
    return isinstance(target, (cst.Name, cst.Attribute))
