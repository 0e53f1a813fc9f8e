"""What a name means in a module: which name of which package, and which variable of which function.

``check`` runs without LibCST, and both commands must agree on what is a use of Apex, so this model, made of
``ast``, is the only answer. ``migrate`` asks it for names as written, and LibCST for positions, parents and formatting.
"""

import ast
from typing import NamedTuple

from .alias_names import alias_names

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: The separator between the place of a scope and the name of a variable in it.
_MARK = ":"
#: Longer chains of attributes are not names of anything.
_LONGEST = 100


class Import(NamedTuple):
    """A name that a statement imports.

    Attributes:
        level: the number of dots of a relative import.
        module: ``a.b`` of ``import a.b`` and of ``from a.b import c``; "" of ``from . import c``.
        name: ``c`` of ``from a.b import c``; "" of ``import a.b``.
        local: the name that is bound.
        is_renamed: whether it has an ``as``.
    """

    level: int
    module: str
    name: str
    local: str
    is_renamed: bool

    @property
    def full_name(self):
        """The full name of what is imported."""
        return ".".join(filter(None, [self.module, self.name]))


def imports_of(nodes):
    """Yield an ``Import`` for each name that the statements among some nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                yield Import(0, each.name, "", each.asname or each.name.partition(".")[0], bool(each.asname))
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield Import(node.level or 0, node.module or "", each.name, each.asname or each.name, bool(each.asname))


class Names:
    """The full names of a module's names, from the nodes of its syntax tree.

    Args:
        nodes: all nodes of the tree, parents first.
        inherited: names of Apex that are imported from other files: name -> full name.
        assignments: whether to follow ``self.amp = amp``.

    Attributes:
        apex: name -> full name, such as ``{"amp": "apex.amp"}``. Attributes are written with dots: ``self.amp``.
    """

    def __init__(self, nodes, inherited=None, assignments=True):
        self._imported, self.apex = {}, dict(inherited or {})
        self._others = set()  # bound to another package too: `from torch.cuda import amp` in an `else`
        for each in imports_of(nodes):
            if each.module and not each.level:
                self._import(each)
        for node in nodes if assignments else ():
            if isinstance(node, ast.Assign):
                self._assign(node)

    def _import(self, one):
        full = one.full_name if one.name or one.is_renamed else one.local
        is_apex = alias_names().is_apex(one.module)
        if one.name == "*" and is_apex:
            self.apex.update({name: f"{one.module}.{name}" for name in alias_names().modules.get(one.module, ())})
            return
        self._imported[one.local] = full
        if is_apex:
            self.apex[one.local] = full
        else:
            self._others.add(one.local)

    def _assign(self, node):
        """Follow ``self.amp = amp`` and ``amp = importlib.import_module("apex.amp")``."""
        full_name = self.of_apex(node.value) or _module_of_call(node.value)
        for name in map(dotted, node.targets) if full_name else ():
            if name:
                self.apex.setdefault(name, full_name)

    def of(self, node):
        """Return the full name of an expression: ``torch.optim.SGD`` of ``optim.SGD``.

        A name that is not imported is returned as it is; for an expression that is not a dotted name, "" is returned.
        """
        head, _, rest = (dotted(node) or "").partition(".")
        return ".".join(filter(None, [self._imported.get(head, head), rest]))

    def of_apex(self, node):
        """Return the full name of Apex that an expression refers to, or None."""
        return self.resolve(dotted(node))

    def resolve(self, name):
        """Return the full name of Apex that a dotted name of the module refers to, or None."""
        head, rest = name, ""
        while head:
            if head in self.apex:
                full = self.apex[head] + rest
                is_sure = head not in self._others or alias_names().verdict(full).becomes != "refused"
                return full if is_sure else None
            head, _, last = head.rpartition(".")
            rest = "." + last + rest
        return None


def dotted(node):
    """Return ``a.b.c`` for such an expression, otherwise None."""
    parts = []
    while isinstance(node, ast.Attribute) and len(parts) < _LONGEST:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id] + parts[::-1]) if isinstance(node, ast.Name) else None


def last_name(node):
    """Return the last part of a name or attribute, also of a call's result: ``c`` of ``a().c``; otherwise None."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def called(node):
    """Return the last part of the name that a call calls; None for other nodes."""
    return last_name(node.func) if isinstance(node, ast.Call) else None


def imported_by_call(node):
    """Return the name in ``import_module("apex.amp")`` or ``is_available("apex")``, or None."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name, function = string(node.args[0]), (called(node) or "").lower()
    is_asked_for = any(word in function for word in ("import", "find_", "available", "installed", "has_module"))
    return name if is_asked_for and name and alias_names().is_apex(name) else None


def _module_of_call(node):
    """Return the module that a call returns, or None: ``is_available("apex")`` returns none."""
    return imported_by_call(node) if called(node) in ("import_module", "__import__") else None


def string(node):
    """Return the value of a string constant, otherwise None; in Python 3.7 they are ``ast.Str``."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else getattr(node, "s", None)
    return value if isinstance(value, str) else None


def written_option(call):
    """Return the option of a call of ``add_argument`` as it is written, the long one if there are several, or None."""
    flags = [string(each) for each in call.args if string(each)]
    return next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else None)


def names_used(nodes):
    """Return the names that nodes of a script bind or read."""
    found = {each.local.partition(".")[0] for each in imports_of(nodes)}
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


# -- variables ---------------------------------------------------------------------------------------------------------


class VariableNames:
    """The variables of a module, written as ``LINE.COLUMN:name``, with the place of the function that binds them.

    The same name in two functions is two variables. A variable of the module is written as it is, and ``self.model``
    with the place of the class, or of its first base class in the module.

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
            self._bound[id(node)] = bound_in(node)
        inner = (node,) + around if isinstance(node, _FUNCTIONS + (ast.ClassDef,)) else around
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner)

    def of(self, node):
        """Return the variable, or attribute of one, for an expression, such as ``"3.0:model.head"``; or None."""
        name = dotted(node) if node is not None else None
        return None if name is None else self.like(node, name)

    def like(self, node, name):
        """Return the variable that a name refers to at a node."""
        around, head = self._around[id(node)], name.partition(".")[0]
        functions = [each for each in around if isinstance(each, _FUNCTIONS)]
        classes = [each for each in around if isinstance(each, ast.ClassDef)]
        if head == "self" and classes:
            return self.parameter(self._first_class(classes[0]), name)
        binding = next((each for each in functions if head in self._bound[id(each)]), None)
        return name if binding is None else self.parameter(binding, name)

    def parameter(self, function, name):
        """Return the variable that is a parameter of a function."""
        return f"{function.lineno}.{function.col_offset}{_MARK}{name}"

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


def bound_in(scope):
    """Return the names that a function, class or module binds, except global and nonlocal ones, as a set."""
    args, bound, shared = getattr(scope, "args", None), set(), set()
    if args is not None:
        bound |= {each.arg for each in args.args + args.kwonlyargs + getattr(args, "posonlyargs", [])}
        bound |= {each.arg for each in (args.vararg, args.kwarg) if each is not None}
    for node in inside(scope.body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared |= set(node.names)
    return bound - shared


def inside(body):
    """Yield the nodes of statements, or of a lambda's expression, without those of functions and classes in them."""
    waiting = list(body) if isinstance(body, list) else [body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS + (ast.ClassDef,)):
            waiting += list(ast.iter_child_nodes(node))
