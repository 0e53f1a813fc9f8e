"""The calls that a script is made of: those of ``amp``, backward passes, clipping; and their arguments."""

import ast

from .bindings import dotted, last_name, string

INITIALIZE = ("apex.amp.initialize", "apex.amp.frontend.initialize", "apex.amp._initialize.initialize")
SCALE_LOSS = ("apex.amp.scale_loss", "apex.amp.handle.scale_loss")
CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grad_value")


def initialize_calls(nodes, bindings):
    """Return the calls of ``amp.initialize`` among the nodes of a tree."""
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return [node for node in calls if bindings.full_name(node.func) in INITIALIZE]


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
    flags = [string(each) for each in call.args if string(each)]
    written = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else None)
    stated = next((string(each.value) for each in call.keywords if each.arg == "dest"), None)
    return stated or (written.lstrip("-").replace("-", "_") if written else None), written


def is_backward(call):
    """Return whether a call is ``loss.backward()``, with a tensor's arguments; ``engine.backward(loss)`` is not."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    is_super = isinstance(call.func.value, ast.Call) and last_name(call.func.value.func) == "super"
    return not is_super and (not call.args or isinstance(call.args[0], ast.Constant))


def is_clipping(call):
    """Return whether a call clips the gradients of ``model.parameters()``."""
    return last_name(call.func) in CLIPS and bool(call.args) and is_parameters(call.args[0])


def is_parameters(node):
    """Return whether an expression is ``model.parameters()``."""
    return isinstance(node, ast.Call) and last_name(node.func) == "parameters"
