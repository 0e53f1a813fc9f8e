"""The calls that a script is made of: those of ``amp``, backward passes, clipping; and their arguments."""

import ast

from .bindings import last_name

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
