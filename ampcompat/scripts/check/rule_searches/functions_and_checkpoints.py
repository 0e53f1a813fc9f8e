"""Problems with functions and files: ``binary_cross_entropy`` on half, checkpoints without amp's state."""

import ast
import bisect

from ...model.bindings import last_name, string
from ...model.rule_texts import finding

_STATE_DICTS = ("apex.amp.state_dict", "apex.amp.frontend.state_dict")
_REGISTRATIONS = ("register_float_function", "register_half_function", "float_function", "disable_casts")


def binary_cross_entropy(source, bindings):
    """Return findings on ``F.binary_cross_entropy`` and ``nn.BCELoss`` of a ``Source``.

    None if the script registers ``sigmoid`` as a float32 function, or casts in the call.
    """
    if any(last_name(node.func) in _REGISTRATIONS for node in _calls(source.nodes)):
        return []
    found, aliases = [], _imported_as(source.nodes, ("binary_cross_entropy", "BCELoss"))
    for call in _calls(source.nodes):
        name = last_name(call.func)
        name = aliases.get(name, name)
        if name == "BCELoss" or (name == "binary_cross_entropy" and not _is_float(call.args[:1])):
            found.append(finding("half-binary-cross-entropy", source.place(call.lineno), name))
    return found


def checkpoints(source, bindings):
    """Return findings on calls that save an optimizer's state but not amp's: ``torch.save`` and a project's own
    ``save_checkpoint({...})``.
    """
    if any(bindings.full_name(node) in _STATE_DICTS for node in source.nodes if isinstance(node, ast.Attribute)):
        return []
    found, assigned = [], _assigned(source.nodes)
    for call in _calls(source.nodes):
        is_torch = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
        if "save" in (last_name(call.func) or "") and call.args:
            content = _value_of(call.args[0], assigned)
            content = content if is_torch or isinstance(content, ast.Dict) else None
            if content is not None and _has_optimizer(content) and not _mentions_amp(content):
                found.append(finding("checkpoint-without-amp", source.place(call.lineno)))
    return found


def _calls(nodes):
    return (node for node in nodes if isinstance(node, ast.Call))


def _imported_as(nodes, names):
    return {
        alias.asname: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and alias.name in names
    }


def _is_float(arguments):
    """Return whether an argument is cast in the call: ``binary_cross_entropy(scores.float(), …)``."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in ("float", "double") for node in arguments)


def _assigned(nodes):
    """Return the values that are assigned to names: name -> (lines, values), by line."""
    found = {}
    for node in sorted((each for each in nodes if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        for target in node.targets:
            if isinstance(target, ast.Name):
                lines, values = found.setdefault(target.id, ([], []))
                lines.append(node.lineno)
                values.append(node.value)
    return found


def _value_of(node, assigned):
    """Return the last value assigned to a name before it is used, if the argument is a name."""
    if not isinstance(node, ast.Name):
        return node
    lines, values = assigned.get(node.id, ([], []))
    count = bisect.bisect_right(lines, node.lineno)
    return values[count - 1] if count else None


def _has_optimizer(content):
    """Return whether an expression calls ``optimizer.state_dict()``, whatever the name of the optimizer."""
    for call in _calls(ast.walk(content)):
        if last_name(call.func) == "state_dict" and isinstance(call.func, ast.Attribute):
            if "optim" in (last_name(call.func.value) or "").lower():
                return True
    return False


def _mentions_amp(content):
    words = (string(node) or last_name(node) or "" for node in ast.walk(content))
    return any("amp" in word.lower() or "scaler" in word.lower() for word in words)
