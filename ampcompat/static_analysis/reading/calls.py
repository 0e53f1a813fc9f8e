"""The calls that a script is made of: ``amp``, torch.amp, backward passes, casts; their arguments, and their levels."""

import ast
import re

from ..rules import RequestedLevel
from .names import called, dotted, last_name, string, written_option

INITIALIZE = ("apex.amp.initialize", "apex.amp.frontend.initialize", "apex.amp._initialize.initialize")
SCALE_LOSS = ("apex.amp.scale_loss", "apex.amp.handle.scale_loss")
CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grad_value")
HALF_DTYPES = ("torch.half", "torch.float16", "torch.bfloat16")
_HALF_STRINGS = ("float16", "bfloat16", "auto")
_LEVEL = re.compile(r"^O[0-5]$")
_IN_COMMAND = re.compile(r"(?<![\w-])(-[\w-]+)[ =]+[\"']?(O[0-5])\b")
_OPTION = re.compile("opt|level|amp|apex")
UNKNOWN = "?"


def initialize_calls(nodes, names):
    """Return the calls of ``amp.initialize`` among the nodes of a tree, given its ``Names``."""
    return [node for node in nodes if isinstance(node, ast.Call) and names.of_apex(node.func) in INITIALIZE]


def argument(call, position, keyword):
    """Return an argument of a call by position or keyword, or None."""
    for each in call.keywords:
        if each.arg == keyword:
            return each.value
    if len(call.args) > position and not any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
        return call.args[position]
    return None


def passed(call, function):
    """Yield (parameter, argument) of a call of a function, or of a method without its ``self``."""
    parameters = [each.arg for each in function.args.args]
    if parameters[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        parameters = parameters[1:]
    if not any(isinstance(each, ast.Starred) for each in call.args):
        yield from zip(parameters, call.args)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def names_in(node):
    """Return the dotted names in an argument: of ``model`` or ``[model, other]``."""
    each = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return [name for name in map(dotted, each) if name]


def option_of(call):
    """Return (the name of the value that ``add_argument`` stores, the option as it is written), or (None, None)."""
    written = written_option(call)
    stated = next((string(each.value) for each in call.keywords if each.arg == "dest"), None)
    return stated or (written.lstrip("-").replace("-", "_") if written else None), written


def is_backward(call):
    """Return whether a call is ``loss.backward()``, also with its gradient ``loss`` or ``torch.ones_like(loss)``."""
    if called(call) != "backward" or not isinstance(call.func, ast.Attribute) or called(call.func.value) == "super":
        return False
    if not call.args or isinstance(call.args[0], ast.Constant):
        return True
    gradient = call.args[0].args[0] if called(call.args[0]) == "ones_like" and call.args[0].args else call.args[0]
    return dotted(gradient) is not None and dotted(gradient) == dotted(call.func.value)


def is_clipping(call):
    """Return whether a call clips the gradients of ``model.parameters()``."""
    return last_name(call.func) in CLIPS and bool(call.args) and is_parameters(call.args[0])


def is_parameters(node):
    """Return whether an expression is ``model.parameters()``."""
    return called(node) == "parameters"


def ends_script(statement):
    """Return whether a statement raises an error or exits."""
    return isinstance(statement, ast.Raise) or called(getattr(statement, "value", None)) in ("exit", "_exit", "quit")


# -- half weights ---------------------------------------------------------------------------------------------------


def is_half_cast(call, names):
    """Return whether a call is ``model.half()`` or ``model.to(torch.bfloat16)``, of a model or a tensor."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("half", "bfloat16", "to", "type"):
        return False
    if call.func.attr in ("half", "bfloat16"):
        return not call.args
    return any(names.of(each) in HALF_DTYPES for each in call.args + [each.value for each in call.keywords])


def loads_half(call, names):
    """Return whether a call loads a model in half or in its file's dtype: ``from_pretrained(…, dtype="auto")``."""
    given = [each.value for each in call.keywords if each.arg in ("dtype", "torch_dtype")]
    is_half = any(names.of(each) in HALF_DTYPES or string(each) in _HALF_STRINGS for each in given)
    return called(call) == "from_pretrained" and is_half


# -- levels ------------------------------------------------------------------------------------------------------------


def asked_levels(source, defaults):
    """Return the ``RequestedLevel`` of each call of ``amp.initialize`` in a ``Source``.

    Args:
        defaults: the results of ``default_levels`` for all files, as name -> {(level, words)}; the file's own come
            first.
    """
    found, own_defaults = [], {}
    calls = initialize_calls(source.nodes, source.names)
    for name, level in default_levels(source.nodes if calls else ()):
        own_defaults.setdefault(name, set()).add(level)
    for call in calls:
        value, place = argument(call, 3, "opt_level"), source.place(call.lineno)
        is_open = any(each.arg is None for each in call.keywords)
        if value is None:
            found.append(RequestedLevel(place, *((UNKNOWN, "**keywords") if is_open else ("O1", "Apex's default"))))
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
        if isinstance(node, ast.Call):
            yield from _option(node) if called(node) in ("add_argument", "add_option") else ()
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
    if called(node) == "get" and node.args:
        return string(node.args[0])
    return last_name(node)


def _literal(node):
    """Return the levels that are written in an expression: ``"O1"``, or ``"O1" if fast else "O2"``."""
    if isinstance(node, ast.IfExp):
        return _literal(node.body) + _literal(node.orelse)
    text = string(node) if node is not None else None
    return [text] if text and _LEVEL.match(text) else []
