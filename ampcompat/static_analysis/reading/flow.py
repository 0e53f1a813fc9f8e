"""The statements of a scope in order, each with the conditions under which it runs.

Two statements may run in the same pass only if their conditions do not contradict each other: ``if fp16:`` and its
``else``, or ``if fp16:`` and a later ``if not fp16:``.
"""

import ast
from collections import deque
from typing import NamedTuple, Tuple

from .nodes import children

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NONE = ast.dump(ast.parse("None", mode="eval").body)
#: The conditions of a statement that are kept: the innermost and latest.
_MOST = 50
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class FlowStep(NamedTuple):
    """A statement, or the header of a compound one.

    Attributes:
        node: the statement.
        conditions: (subject, value, whether it holds) triples.
        blocks: the ``with`` statements around it.
        loops: the number of loops around it.
    """

    node: ast.AST
    conditions: Tuple
    blocks: Tuple
    loops: int

    def expressions(self):
        """Yield the nodes of the statement, without the statements in it and without nested functions."""
        waiting = deque(child for child in children(self.node) if not isinstance(child, ast.stmt))
        while waiting:
            node = waiting.popleft()
            if isinstance(node, (ast.ExceptHandler, ast.Lambda)):
                continue
            yield node
            waiting += children(node)

    def calls(self):
        """Yield the calls of the statement."""
        return (node for node in self.expressions() if isinstance(node, ast.Call))


def scopes(nodes):
    """Yield (scope, steps) of the module and of each function in it, from the nodes of its tree."""
    for node in nodes:
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, list(steps_of(node))


def steps_of(scope):
    """Yield the steps of a module or function in order, without those of functions in it."""
    return _steps(scope.body, (), (), 0)


def together(one, other):
    """Return whether two steps may run in the same pass."""
    for subject, value, is_so in one.conditions:
        for other_subject, other_value, other_is_so in other.conditions:
            if subject == other_subject and value == other_value and is_so != other_is_so:
                return False
            both = subject == other_subject and is_so and other_is_so and value != other_value
            if both and (None not in (value, other_value) or _NONE in (value, other_value)):
                return False  # x == 1 and x == 2; x and x is None
    return True


def _steps(body, conditions, blocks, loops):
    for node in body:
        yield FlowStep(node, conditions, blocks, loops)
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, ast.If):
            yes, no = [(conditions + more(node.test))[-_MOST:] for more in (_so, _not_so)]
            yield from _steps(node.body, yes, blocks, loops)
            yield from _steps(node.orelse, no, blocks, loops)
            if _ends(node.body):
                conditions = no
            elif _ends(node.orelse):
                conditions = yes
        elif isinstance(node, ast.Try):
            subject = f"try {node.lineno}"
            yield from _steps(node.body + node.orelse, conditions + ((subject, None, True),), blocks, loops)
            for handler in node.handlers:
                yield from _steps(handler.body, conditions + ((subject, None, False),), blocks, loops)
            yield from _steps(node.finalbody, conditions, blocks, loops)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _steps(node.body, conditions, blocks + (node,), loops)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            yield from _steps(node.body, conditions, blocks, loops + 1)
            yield from _steps(node.orelse, conditions, blocks, loops)


def _ends(body):
    return bool(body) and isinstance(body[-1], _ENDS)


def _so(test):
    """Return the conditions that hold where ``test`` is true."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return tuple(each for value in test.values for each in _so(value)) + ((ast.dump(test), None, True),)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _not_so(test.operand)
    return (_condition(test, True),)


def _not_so(test):
    """Return the conditions that hold where ``test`` is false."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return tuple(each for value in test.values for each in _not_so(value)) + ((ast.dump(test), None, False),)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _so(test.operand)
    return (_condition(test, False),)


def _condition(test, is_so):
    """Return one condition; ``x != 1`` is the negation of ``x == 1``, ``x is not None`` that of ``x is None``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = ast.dump(test.left), ast.dump(test.comparators[0])
        if isinstance(test.ops[0], (ast.Eq, ast.Is)):
            return (left, right, is_so)
        if isinstance(test.ops[0], (ast.NotEq, ast.IsNot)):
            return (left, right, not is_so)
    return (ast.dump(test), None, is_so)
