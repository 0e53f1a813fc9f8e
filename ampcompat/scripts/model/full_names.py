"""Full names of a module's imports, from any package."""

import ast

from .bindings import dotted


class FullNames:
    """The imports of a module, from the nodes of its syntax tree.

    Args:
        nodes: all nodes of the tree.
    """

    def __init__(self, nodes):
        self._names = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._names[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._names[alias.asname or alias.name] = node.module + "." + alias.name

    def of(self, node):
        """Return the full name of an expression: ``torch.optim.SGD`` of ``optim.SGD``.

        A name that is not imported is returned as it is; for an expression that is not a dotted name, "" is returned.
        """
        head, _, rest = (dotted(node) or "").partition(".")
        return ".".join(filter(None, [self._names.get(head, head), rest]))

    def local(self, full_name):
        """Return the name under which a module imports a full name, or None."""
        return next((name for name, full in self._names.items() if full == full_name), None)
