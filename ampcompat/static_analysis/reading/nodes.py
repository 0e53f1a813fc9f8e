"""The nodes of a syntax tree."""

import ast


def nodes_of(tree):
    """Return the nodes of a tree, parents before children, without the contexts of names, such as ``ast.Load()``."""
    found = [tree]
    for node in found:  # also those that are added here
        found += children(node)
    return found


def children(node):
    """Return the nodes that are directly in a node, without the context of a name."""
    found = []
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and field != "ctx":
            found.append(value)
    return found
