"""Passes the new variables to the functions that read them: as parameters, results, or attributes of ``self``."""

import libcst as cst

from . import syntax
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


# -- scopes ------------------------------------------------------------------------------------------------------------


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
        self.node, self.parent = node, parent
        self.sets, self.reads, self.calls = set(), set(), []
        self._bound = None

    @property
    def bound(self):
        """The names that it binds."""
        if self._bound is None:
            self._bound = syntax.bound_names(self.node)
        return self._bound

    @property
    def name(self):
        """The function's name; empty for the module."""
        return self.node.name.value if isinstance(self.node, (cst.FunctionDef, cst.ClassDef)) else ""

    @property
    def is_function(self):
        """Whether it is a function or method."""
        return isinstance(self.node, cst.FunctionDef)

    @property
    def is_method(self):
        """Whether it is a method with ``self``."""
        is_inside = self.is_function and isinstance(self.parent.node, cst.ClassDef)
        params = self.node.params.params if is_inside else ()
        return bool(params) and params[0].name.value == "self"

    def around(self):
        """Yield the scope and those around it whose variables it can read, without classes."""
        scope = self
        while scope is not None:
            if scope is self or not isinstance(scope.node, cst.ClassDef):
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


class ScriptScopes(cst.CSTVisitor):
    """The scopes of a module.

    Args:
        module: the module.
        variables: the names of the new variables.

    Attributes:
        scopes: all of them, outer ones first.
        mentioned: names of functions that are read outside of a call.
    """

    def __init__(self, module, variables):
        super().__init__()
        self._variables, self.scopes, self._read = variables, [], []
        self._open, self._called, self._statement = [], set(), None
        syntax.visit(module, self)
        known = self.functions()
        self.mentioned = {name for name, scope in self._read if name in known and not _is_local(name, scope)}

    def _enter(self, node):
        self._open.append(Scope(node, self._open[-1] if self._open else None))
        self.scopes.append(self._open[-1])

    def _leave(self, original_node):
        self._open.pop()

    visit_Module = visit_ClassDef = _enter
    leave_ClassDef = leave_FunctionDef = _leave

    def visit_Param(self, node):
        """Visit only the default of a parameter, not its name."""
        syntax.visit(node.default, self) if node.default is not None else None
        return False

    def visit_FunctionDef(self, node):
        """Enter a function; a new variable may be one."""
        self._called.add(node.name)
        if node.name.value in self._variables:
            self._open[-1].sets.add(node.name.value)
        self._enter(node)
        self._open[-1].sets |= {each for each in self._variables if each in _parameters(node)}

    def visit_SimpleStatementLine(self, node):
        """Keep the statement, which may use the result of a call."""
        self._statement = node

    def visit_Assign(self, node):
        """Note the variables that are set."""
        self._open[-1].sets |= syntax.assigned_names(node) & self._variables

    def visit_Call(self, node):
        """Note a call of a function of the script."""
        if isinstance(node.func, cst.Name):
            self._called.add(node.func)
            line = self._statement.body[0] if self._statement is not None and len(self._statement.body) == 1 else None
            whole = isinstance(line, (cst.Assign, cst.Expr)) and line.value is node
            self._open[-1].calls.append((node, self._statement if whole else None))

    def _visit_value(self, node):
        """Visit only the owner of an attribute, and only the value of an argument, not its keyword."""
        syntax.visit(node.value, self)
        return False

    visit_Attribute = visit_Arg = _visit_value

    def visit_Name(self, node):
        """Note names that are read."""
        if node.value in self._variables:
            self._open[-1].reads.add(node.value)
        elif node not in self._called:
            self._read.append((node.value, self._open[-1]))

    def functions(self):
        """Return name -> ``Scope`` of the functions in the module."""
        return {each.name: each for each in self.scopes if each.is_function and each.parent.parent is None}

    def callers(self, name):
        """Yield (scope, call, statement) of the calls of a function."""
        for scope in self.scopes:
            for call, statement in scope.calls:
                if call.func.value == name:
                    yield scope, call, statement


def _is_local(name, scope):
    """Return whether a name refers to a variable of an enclosing function."""
    functions = (each for each in scope.around() if each.is_function)
    return any(name in each.bound for each in functions)


def _parameters(function):
    return {each.name.value for each in syntax.walk(function.params) if isinstance(each, cst.Param)}
