"""Which names of a module refer to names of Apex."""

import ast

from .alias_names import alias_names


class Bindings:
    """The names of one module that are bound to Apex, from the nodes of its syntax tree.

    Args:
        nodes: all nodes of the tree, parents first.
        inherited: names imported from other files: name -> full name.
        assignments: whether to follow ``self.amp = amp``.

    Attributes:
        apex: name -> full name, such as ``{"amp": "apex.amp"}``. Attributes are written with dots: ``self.amp``.
        others: names that the module binds to another package too: ``from torch.cuda import amp`` in an ``else``.
    """

    def __init__(self, nodes, inherited=None, assignments=True):
        self.apex, self.others = dict(inherited or {}), set()
        for node in nodes:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._import_from(node)
        for node in nodes if assignments else ():
            if isinstance(node, ast.Assign):
                self._assign(node)

    def _import(self, node):
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if alias_names().is_apex(alias.name):
                self.apex[name] = alias.name if alias.asname else name
            else:
                self.others.add(name)

    def _import_from(self, node):
        for alias in node.names:
            if alias_names().is_apex(node.module):
                names = [alias.name] if alias.name != "*" else sorted(alias_names().modules.get(node.module, ()))
                for name in names:
                    self.apex[alias.asname or name] = node.module + "." + name
            else:
                self.others.add(alias.asname or alias.name)

    def _assign(self, node):
        """Follow ``self.amp = amp`` and ``amp = importlib.import_module("apex.amp")``."""
        full_name = self.full_name(node.value) or _module_of_call(node.value)
        if not full_name:
            return
        for target in node.targets:
            name = dotted(target)
            if name and name not in self.apex:
                self.apex[name] = full_name

    def full_name(self, node):
        """Return the full name of Apex that an expression refers to, or None."""
        return self.resolve(dotted(node))

    def resolve(self, name):
        """Return the full name of Apex that a dotted name of the module refers to, or None."""
        head, rest = name, ""
        while head:
            if head in self.apex:
                full = self.apex[head] + rest
                is_sure = head not in self.others or alias_names().verdict(full).becomes != "refused"
                return full if is_sure else None
            head, _, last = head.rpartition(".")
            rest = "." + last + rest
        return None


#: Longer chains of attributes are not names of anything.
_LONGEST = 100


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


def imported_by_call(node):
    """Return the name in ``import_module("apex.amp")`` or ``is_available("apex")``, or None."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name, called = string(node.args[0]), (last_name(node.func) or "").lower()
    is_asked_for = any(word in called for word in ("import", "find_", "available", "installed", "has_module"))
    return name if is_asked_for and name and alias_names().is_apex(name) else None


def _module_of_call(node):
    """Return the module that a call returns, or None: ``is_available("apex")`` returns none."""
    is_import = isinstance(node, ast.Call) and last_name(node.func) in ("import_module", "__import__")
    return imported_by_call(node) if is_import else None


def string(node):
    """Return the value of a string constant, otherwise None; in Python 3.7 they are ``ast.Str``."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else getattr(node, "s", None)
    return value if isinstance(value, str) else None
