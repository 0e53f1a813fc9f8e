"""The conditions under which a script calls ``amp.initialize``."""

import ast

from ...model import code_files
from ...model.bindings import Bindings, dotted
from ...model.calls import initialize_calls
from ...model.rule_texts import finding
from ...model.source import Source


def check(source, bindings):
    """Yield a finding for each call of ``amp.initialize`` that is under a condition."""
    for place, condition in conditional_calls(source, bindings):
        yield finding("conditional-initialize", place, condition)


def conditional_calls(source, bindings):
    """Yield (place, condition) of the calls of ``amp.initialize`` in a ``Source`` that are under a condition.

    The condition is returned as written: "if args.fp16". Conditions of calling functions are not followed, and
        ``__name__`` and names of Apex itself do not count as conditions.
    """
    parents = {child: node for node in source.nodes for child in ast.iter_child_nodes(node)}
    for call in initialize_calls(source.nodes, bindings):
        told, child = [], call
        while child in parents and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = parents[child]
            if isinstance(node, ast.If) and child is not node.test and not _is_always(node.test, bindings):
                told.insert(0, _told(source, node, is_else=child in node.orelse))
            child = node
        if told:
            yield source.place(call.lineno), " and ".join(told)


def conditional_calls_in(path):
    """Return what ``conditional_calls`` yields for a Python file; nothing if it cannot be read or parsed."""
    try:
        source = Source(path, code_files.read(path), code_files.PYTHON)
    except code_files.Unreadable:
        return []
    return list(conditional_calls(source, Bindings(source.nodes)))


def _is_always(test, bindings):
    names = {name for name in map(dotted, ast.walk(test)) if name}
    return bool(names) and all(name == "__name__" or bindings.resolve(name) for name in names)


def _told(source, node, is_else):
    """Return the first line of an ``if``, without its colon."""
    line = source.lines[node.lineno - 1].strip()
    line = line[2:] if line.startswith("elif") else line
    head = line.partition(" #")[0].rstrip().rstrip(":").rstrip()
    return f"else of `{head}`" if is_else else f"`{head}`"
