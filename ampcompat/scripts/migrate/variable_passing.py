"""Passes the new variables to the functions that read them: as parameters, results, or attributes of ``self``."""

import ast

from ..reading.code_files import PYTHON
from ..reading.names import bound_in, inside, string
from ..reading.source import Source
from .signature_rewriting import SignatureRewriter

OPTIONAL = "{}() evaluates in float32 if its caller has no autocast"
MISSING = "{} needs {}: pass it here from {}"


class VariablePassing:
    """The variables to pass in a script, found in its new source.

    Args:
        text: the new source.
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

    def __init__(self, text, variables):
        self._variables = variables
        self._parsed = Source("", text.encode("utf-8"), PYTHON)
        self._script = ScriptScopes(self._parsed, set(variables))
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
            function = self._functions.get(call.func.id)
            if function is not None and name in function.sets and name not in self.parameters.get(function.node, ()):
                if function is not scope and self._can_return(function):
                    return function
        return None

    def _can_return(self, function):
        """Return whether a function can return one more value: it has one ``return``, and all calls take its result."""
        callers = list(self._script.callers(function.name))
        if function.name in self._script.mentioned or not all(map(_is_always_reached, callers)):
            return False
        returns = [each for each in inside(function.node) if isinstance(each, ast.Return)]
        statements = [statement for _, _, statement in callers]
        if not returns:
            return all(isinstance(each, ast.Expr) for each in statements)
        if len(returns) > 1 or function.node.body[-1] is not returns[0] or returns[0].value is None:
            return False
        return all(_takes(each, returns[0].value) for each in statements)

    def _return(self, function, name):
        self.results.setdefault(function.node, set()).add(name)
        for caller, _, statement in self._script.callers(function.name):
            caller.sets.add(name)
            self.targets.setdefault(statement, set()).add(name)

    def transformer(self):
        """Return the transformer that passes the variables."""
        order, at = self._ordered, self._parsed.position
        marks = {at(node): self._missing_text(node, order(names)) for node, names in self.missing.items()
                 if hasattr(node, "lineno")}  # fmt: skip
        attributes = {at(node) for scope, node in self._script.named if self._is_attribute(scope, node.id)}
        by_name = {at(call) for scope in self._script.scopes for call, _ in scope.calls if self._has_defaults(call)}
        chosen = (self.parameters, self.arguments, self.results, self.targets)
        chosen = [{at(node): order(names) for node, names in each.items()} for each in chosen]
        return SignatureRewriter(marks, set(map(at, self.optional)), attributes, by_name, *chosen)

    def _has_defaults(self, call):
        """Return whether a call must give a new argument by name: after defaults, ``*args`` or other such arguments."""
        function = self._functions.get(call.func.id)
        if call.keywords or any(isinstance(each, ast.Starred) for each in call.args):
            return True
        given = function.node.args if function is not None else None
        return given is not None and bool(given.defaults or given.vararg or given.kwonlyargs)

    def _missing_text(self, node, names):
        setters = sorted({scope.name + "()" for scope, sets in self._setters if sets & set(names)})
        name = node.name + "()" if isinstance(node, _FUNCTIONS) else "the script"
        return MISSING.format(name, " and ".join(names), " and ".join(setters))

    def left(self):
        """Return messages on what is left to do by hand."""
        return [self._missing_text(node, self._ordered(names)) for node, names in self.missing.items()]

    def notes(self):
        """Return notes on changes to signatures."""
        told = [(self.parameters, "{}() gets {}"), (self.results, "{}() also returns {}")]
        optional = [OPTIONAL.format(node.name) for node in self.optional]
        return optional + [
            text.format(node.name, " and ".join(self._ordered(names)))
            for chosen, text in told
            for node, names in chosen.items()
        ]


def _is_always_reached(caller):
    """Return whether a call is a separate statement, under no condition and in no loop."""
    scope, _, statement = caller
    body = scope.node.body
    guards = [each.body for each in body if isinstance(each, ast.If) and "__main__" in map(string, ast.walk(each.test))]
    return statement is not None and any(statement is each for block in [body] + guards for each in block)


def _takes(statement, value):
    """Return whether ``targets = f(...)`` unpacks a result in the way the function returns it."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if isinstance(value, ast.Tuple):
        return isinstance(target, ast.Tuple) and len(target.elts) == len(value.elts)
    return isinstance(target, (ast.Name, ast.Attribute))


# -- scopes ------------------------------------------------------------------------------------------------------------

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Scope:
    """A module, class or function.

    Attributes:
        node: its node.
        parent: the ``Scope`` around it; None for the module.
        sets: the new variables that it sets.
        reads: the new variables that it reads.
        calls: its calls of functions by name: (call, the statement if it is ``targets = f(...)`` or ``f(...)``).
    """

    def __init__(self, node, parent):
        self.node, self.parent, self.name = node, parent, getattr(node, "name", "")
        self.sets, self.reads, self.calls = set(), set(), []
        self.is_function = isinstance(node, _FUNCTIONS)

    @property
    def is_method(self):
        """Whether it is a method with ``self``."""
        is_inside = self.is_function and isinstance(self.parent.node, ast.ClassDef)
        return is_inside and [each.arg for each in self.node.args.args[:1]] == ["self"]

    def around(self):
        """Yield the scope and those around it whose variables it can read, without classes."""
        scope = self
        while scope is not None:
            if scope is self or not isinstance(scope.node, ast.ClassDef):
                yield scope
            scope = scope.parent

    def outermost(self):
        """Return the enclosing function that is a method or at module level, or itself if it is one."""
        scope = self
        while scope.parent is not None and scope.parent.is_function:
            scope = scope.parent
        return scope

    def has(self, name):
        """Return whether a new variable can be read here."""
        return any(name in each.sets for each in self.around())


class ScriptScopes:
    """The scopes of a script.

    Args:
        source: its ``Source``.
        variables: the names of the new variables.

    Attributes:
        scopes: all of them, outer ones first.
        named: (scope, node) of the new variables, where they are read or set.
        mentioned: names of functions that are read outside of a call.
    """

    def __init__(self, source, variables):
        self._variables, self.scopes, self.named, self._others = variables, [], [], []
        self._called = {id(call.func) for call in source.calls()}
        self._whole = {id(each.value): each for each in source.nodes if isinstance(each, (ast.Assign, ast.Expr))}
        self._visit(source.tree, None)
        known = self.functions()
        self.mentioned = {name for scope, name in self._others if name in known and not _is_local(name, scope)}

    def _visit(self, node, scope):
        if isinstance(node, _FUNCTIONS + (ast.ClassDef, ast.Module)):
            scope = Scope(node, scope)
            self.scopes.append(scope)
            scope.sets |= self._variables.intersection(bound_in(node))
        elif isinstance(node, ast.Name):
            if node.id in self._variables:
                self.named.append((scope, node))
                scope.reads.add(node.id)
            elif id(node) not in self._called:
                self._others.append((scope, node.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            scope.calls.append((node, self._whole.get(id(node))))
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def functions(self):
        """Return name -> ``Scope`` of the functions in the module."""
        return {each.name: each for each in self.scopes if each.is_function and each.parent.parent is None}

    def callers(self, name):
        """Yield (scope, call, statement) of the calls of a function."""
        for scope in self.scopes:
            for call, statement in scope.calls:
                if call.func.id == name:
                    yield scope, call, statement


def _is_local(name, scope):
    """Return whether a name refers to a variable of an enclosing function."""
    return any(name in bound_in(each.node) for each in scope.around() if each.is_function)
