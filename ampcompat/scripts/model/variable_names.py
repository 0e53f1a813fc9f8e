"""Variables of a script by the scope that binds them: the same name in two functions is two variables."""

import ast

from .bindings import dotted

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: The separator between the place of a scope and the name of a variable in it.
_MARK = ":"


class VariableNames:
    """The variables of a module, written as ``LINE.COLUMN:name``, with the place of the function that binds them.

    A variable of the module is written as it is, and ``self.model`` with the place of the class, or of its first base
    class in the module.

    Args:
        module: its ``ast.Module``.
    """

    def __init__(self, module):
        self._around = {}  # id of a node -> the functions and classes around it, innermost first
        self._bound = {}  # id of a function -> the names that it binds
        self._classes = {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
        self._visit(module, ())

    def _visit(self, node, around):
        self._around[id(node)] = around
        if isinstance(node, _FUNCTIONS):
            self._bound[id(node)] = _bound_in(node)
        inner = (node,) + around if isinstance(node, _FUNCTIONS + (ast.ClassDef,)) else around
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner)

    def of(self, node):
        """Return the variable, or attribute of one, for an expression, such as ``"3.0:model.head"``; or None."""
        name = dotted(node) if node is not None else None
        return None if name is None else self._in_scope(self._around[id(node)], name)

    def like(self, node, name):
        """Return the variable that a name refers to at a node."""
        return self._in_scope(self._around[id(node)], name)

    def parameter(self, function, name):
        """Return the variable that is a parameter of a function."""
        return _written(function, name)

    def _in_scope(self, around, name):
        head = name.partition(".")[0]
        functions = [each for each in around if isinstance(each, _FUNCTIONS)]
        classes = [each for each in around if isinstance(each, ast.ClassDef)]
        if head == "self" and classes:
            return _written(self._first_class(classes[0]), name)
        binding = next((each for each in functions if head in self._bound[id(each)]), None)
        return name if binding is None else _written(binding, name)

    def _first_class(self, node):
        seen = set()
        while node.name not in seen:
            seen.add(node.name)
            bases = [self._classes.get(dotted(base)) for base in node.bases]
            node = next(filter(None, bases), node)
        return node


def as_written(variable):
    """Return the name of a variable as the script writes it."""
    return variable.rpartition(_MARK)[2]


def _written(scope, name):
    return f"{scope.lineno}.{scope.col_offset}{_MARK}{name}"


def _bound_in(function):
    """Return the names that a function binds: its parameters and assigned names, except global and nonlocal ones."""
    args = function.args
    bound = {each.arg for each in args.args + args.kwonlyargs + getattr(args, "posonlyargs", [])}
    bound |= {each.arg for each in (args.vararg, args.kwarg) if each is not None}
    shared = set()
    for node in inside(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared |= set(node.names)
    return bound - shared


def inside(function):
    """Yield the nodes of a function, without those of functions and classes in it."""
    body = function.body if isinstance(function.body, list) else [function.body]
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS + (ast.ClassDef,)):
            waiting += list(ast.iter_child_nodes(node))
