"""The functions of the new script: which new variables each sets and reads, and which of them calls which."""

import libcst as cst

from . import syntax


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
        module.visit(self)
        known = self.functions()
        self.mentioned = {name for name, scope in self._read if name in known and not _is_local(name, scope)}

    def _enter(self, node):
        self._open.append(Scope(node, self._open[-1] if self._open else None))
        self.scopes.append(self._open[-1])

    def visit_Module(self, node):
        """Enter the module."""
        self._enter(node)

    def visit_Param(self, node):
        """Visit only the default of a parameter, not its name."""
        node.default.visit(self) if node.default is not None else None
        return False

    def visit_ClassDef(self, node):
        """Enter a class."""
        self._enter(node)

    def visit_FunctionDef(self, node):
        """Enter a function; a new variable may be one."""
        self._called.add(node.name)
        if node.name.value in self._variables:
            self._open[-1].sets.add(node.name.value)
        self._enter(node)
        self._open[-1].sets |= {each for each in self._variables if each in _parameters(node)}

    def leave_FunctionDef(self, original_node):
        """Leave a function."""
        self._open.pop()

    def leave_ClassDef(self, original_node):
        """Leave a class."""
        self._open.pop()

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

    def visit_Attribute(self, node):
        """Visit only the owner of an attribute."""
        node.value.visit(self)
        return False

    def visit_Arg(self, node):
        """Visit only the value of an argument, not its keyword."""
        node.value.visit(self)
        return False

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
