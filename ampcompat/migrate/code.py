"""Small helpers over LibCST: source to nodes and back, names in a piece of code."""

import libcst as cst
from libcst.helpers import get_full_name_for_node


def text(node):
    """Return the source of an expression or statement."""
    return cst.Module(body=[]).code_for_node(node)


def operand(node):
    """Return the source of an expression, in parentheses where operators beside it could bind more tightly."""
    source = text(node)
    loose = (cst.IfExp, cst.BooleanOperation, cst.Comparison, cst.UnaryOperation, cst.BinaryOperation, cst.Lambda)
    return "({})".format(source) if isinstance(node, loose) and not node.lpar else source


def statements(source):
    """Return the statements of a piece of source."""
    return list(cst.parse_module(source).body)


def expression(source):
    """Return the node of an expression."""
    return cst.parse_expression(source)


def name_of(node):
    """Return ``a.b`` for such an expression, else None; a call has no name."""
    return None if isinstance(node, cst.Call) else get_full_name_for_node(node)


def walk(node):
    """Yield a node and all nodes below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def calls(node):
    """Yield the calls in a node."""
    return (each for each in walk(node) if isinstance(each, cst.Call))


def argument(call, position, keyword):
    """Return the value of an argument by position or keyword, or None."""
    positional = [each for each in call.args if each.keyword is None and not each.star]
    for each in call.args:
        if each.keyword is not None and each.keyword.value == keyword:
            return each.value
    return positional[position].value if position < len(positional) else None


def loaded_names(node):
    """Return the dotted names that occur in a node: ``self.loss`` gives ``self.loss``, ``self`` is left out."""
    found = set()
    for each in walk(node):
        if isinstance(each, (cst.Name, cst.Attribute)):
            name = name_of(each)
            if name and name != "self":
                found.add(name)
    return found


def assigned_names(node):
    """Return the dotted names that a statement assigns, at any depth."""
    targets = []
    for each in walk(node):
        if isinstance(each, cst.Assign):
            targets += [target.target for target in each.targets]
        elif isinstance(each, (cst.AugAssign, cst.AnnAssign)):
            targets.append(each.target)
    names = set()
    for target in targets:
        elements = [each.value for each in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
        names |= {name_of(_base(each)) for each in elements}
    return names - {None}


def _base(node):
    """Return ``losses`` of ``losses["main"]``."""
    return _base(node.value) if isinstance(node, cst.Subscript) else node
