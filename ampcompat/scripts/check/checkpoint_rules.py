"""Rules on checkpoints: what a script saves beside its optimizer's state."""

import ast
import bisect

from ..reading.names import called, last_name, string

_STATE_DICTS = ("apex.amp.state_dict", "apex.amp.frontend.state_dict")


def checkpoints(source):
    """Return findings on calls that save an optimizer's state but not amp's: ``torch.save`` and a project's own
    ``save_checkpoint({...})``.
    """
    if any(source.names.of_apex(node) in _STATE_DICTS for node in source.nodes if isinstance(node, ast.Attribute)):
        return []
    found, assigned = [], _assigned(source.nodes)
    for call in source.calls():
        is_torch = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
        if "save" in (last_name(call.func) or "") and call.args:
            content = _value_of(call.args[0], assigned)
            content = content if is_torch or isinstance(content, ast.Dict) else None
            if content is not None and _has_optimizer(content) and not _mentions_amp(content):
                found.append(source.problem("checkpoint-without-amp", call))
    return found


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
    states = (node for node in ast.walk(content) if called(node) == "state_dict")
    return any("optim" in (last_name(getattr(call.func, "value", None)) or "").lower() for call in states)


def _mentions_amp(content):
    words = (string(node) or last_name(node) or "" for node in ast.walk(content))
    return any("amp" in word.lower() or "scaler" in word.lower() for word in words)
