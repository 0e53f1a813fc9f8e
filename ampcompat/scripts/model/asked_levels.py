"""The opt levels that a code base requests: arguments of ``amp.initialize``, their defaults, and launch commands."""

import ast
import re

from .bindings import dotted, last_name, string
from .calls import argument, initialize_calls, option_of
from .report_records import RequestedLevel

_LEVEL = re.compile(r"^O[0-5]$")
_IN_COMMAND = re.compile(r"(?<![\w-])(-[\w-]+)[ =]+[\"']?(O[0-5])\b")
_OPTION = re.compile("opt|level|amp|apex")
UNKNOWN = "?"


def asked_levels(source, bindings, defaults):
    """Return the ``RequestedLevel`` of each call of ``amp.initialize`` in a ``Source``.

    Args:
        defaults: the results of ``default_levels`` for all files, as name -> {(level, words)}; the file's own come
            first.
    """
    found, own_defaults = [], {}
    for name, level in default_levels(source.nodes):
        own_defaults.setdefault(name, set()).add(level)
    for call in initialize_calls(source.nodes, bindings):
        value, place = argument(call, 3, "opt_level"), source.place(call.lineno)
        is_open = any(each.arg is None for each in call.keywords)
        if value is None:
            found.append(
                RequestedLevel(place, UNKNOWN, "**keywords")
                if is_open
                else RequestedLevel(place, "O1", "Apex's default")
            )
        elif _literal(value):
            found += [RequestedLevel(place, level, "written in the call") for level in _literal(value)]
        else:
            words = dotted(value) or last_name(value) or "an expression"
            name = _subject(value)
            known = sorted(own_defaults.get(name) or defaults.get(name, ()))
            found += [RequestedLevel(place, level, f"{words}, {origin}") for level, origin in known]
            found += [] if known else [RequestedLevel(place, UNKNOWN, words)]
    return found


def default_levels(nodes):
    """Yield (name, (level, words)) for options, variables, parameters and dict entries with a level as value."""
    for node in nodes:
        if isinstance(node, ast.Call) and last_name(node.func) in ("add_argument", "add_option"):
            yield from _option(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from ((_subject(target), (level, "assigned")) for level in _literal(node.value))
        elif isinstance(node, ast.keyword) and node.arg:
            yield from ((node.arg, (level, "passed")) for level in _literal(node.value))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                yield from ((string(key), (level, "in a dict")) for level in _literal(value) if key is not None)
        elif isinstance(node, ast.arguments):
            named = list(zip(node.args[::-1], node.defaults[::-1])) + list(zip(node.kwonlyargs, node.kw_defaults))
            for parameter, value in named:
                yield from ((parameter.arg, (level, "default of a parameter")) for level in _literal(value))


def levels_in_command(text):
    """Return the levels that a line of a shell script passes."""
    return [level for option, level in _IN_COMMAND.findall(text) if _OPTION.search(option)]


def _option(call):
    name, written = option_of(call)
    for each in call.keywords:
        if each.arg == "default" and name:
            yield from ((name, (level, f"default of {written or name}")) for level in _literal(each.value))


def _subject(node):
    """Return the name by which a value is known: ``c`` of ``a.b.c``, ``"c"`` of ``a["c"]``."""
    if isinstance(node, ast.Subscript):
        index = node.slice
        return string(getattr(index, "value", index)) or string(index)
    if isinstance(node, ast.Call) and last_name(node.func) == "get" and node.args:
        return string(node.args[0])
    return last_name(node)


def _literal(node):
    """Return the levels that are written in an expression: ``"O1"``, or ``"O1" if fast else "O2"``."""
    if isinstance(node, ast.IfExp):
        return _literal(node.body) + _literal(node.orelse)
    text = string(node) if node is not None else None
    return [text] if text and _LEVEL.match(text) else []
