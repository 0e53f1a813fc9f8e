"""Rules on what follows ``initialize``: ``scale_loss``, clipping, checkpoints, functions that refuse half inputs."""

import ast
import bisect

from ..reading.calls import CLIPS, SCALE_LOSS, is_backward, is_clipping
from ..reading.flow import steps_of, together
from ..reading.names import called, dotted, last_name, string

HANDLES = ("apex.amp.init", "apex.amp.amp.init")


def check(source, has_masters):
    """Return the findings around the ``scale_loss`` blocks of a ``Source``.

    Args:
        has_masters: whether a level with master weights, or an unknown level, is requested.
    """
    found = []
    for _, steps in source.scopes:
        blocks = _blocks(steps, source.names)
        for step in steps if blocks else ():
            inside = [name for node in step.blocks for name in _scaled_names(node, source.names)]
            if inside:
                found += _in_block(source, step, inside)
            elif any(together(block, step) for block in blocks):
                found += _plain_backward(source, step)
                found += _clipping(source, step) if has_masters else ()
    found += _clipping_methods(source) if has_masters else ()
    return sorted(set(found).union(_handles(source)))


def _blocks(steps, names):
    """Return the ``scale_loss`` blocks among steps, one for each set of conditions."""
    return list({step.conditions: step for step in steps if _scaled_names(step.node, names)}.values())


def _clipping_methods(source):
    """Yield findings on methods that clip, in classes where another method has the ``scale_loss`` block.

    A method with its own backward pass is left out: it clips the gradients of that pass.
    """
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            steps = [list(steps_of(method)) for method in methods]
            blocks = [block for each in steps for block in _blocks(each, source.names)]
            for each in steps if blocks else ():
                has_backward = any(is_backward(call) for step in each for call in step.calls())
                for step in () if has_backward else each:
                    if any(together(block, step) for block in blocks):
                        yield from _clipping(source, step)


def _scaled_names(statement, names):
    """Return the names of the scaled losses, if a statement is a ``with amp.scale_loss(…) as name``."""
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return []
    items = [item for item in statement.items if isinstance(item.context_expr, ast.Call)]
    scaled = [item for item in items if names.of_apex(item.context_expr.func) in SCALE_LOSS]
    return [dotted(item.optional_vars) or "" for item in scaled]


def _in_block(source, step, scaled):
    for call in step.calls():
        if last_name(call.func) in CLIPS:
            yield source.problem("clip-before-unscale", call)
        elif is_backward(call) and dotted(call.func.value) and dotted(call.func.value) not in scaled:
            yield source.problem("plain-backward", call, f"{dotted(call.func.value)}.backward()")


def _plain_backward(source, step):
    for call in filter(is_backward, step.calls()):
        yield source.problem("plain-backward", call, "{}.backward()".format(dotted(call.func.value) or "…"))


def _clipping(source, step):
    return [source.problem("clip-model-params", call) for call in step.calls() if is_clipping(call)]


def _handles(source):
    """Yield findings on methods of the handle that ``amp.init`` returns."""
    handles = set()
    for node in source.nodes:
        if isinstance(node, ast.Assign) and called(node.value) and source.names.of_apex(node.value.func) in HANDLES:
            handles |= {dotted(target) for target in node.targets if dotted(target)}
    for call in source.calls():
        if last_name(call.func) in ("scale_loss", "wrap_optimizer") and isinstance(call.func, ast.Attribute):
            if dotted(call.func.value) in handles:
                yield source.problem("old-handle", call, dotted(call.func))


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


_REGISTRATIONS = ("register_float_function", "register_half_function", "float_function", "disable_casts")


def binary_cross_entropy(source):
    """Return findings on ``F.binary_cross_entropy`` and ``nn.BCELoss`` of a ``Source``.

    None if the script registers ``sigmoid`` as a float32 function, or casts in the call.
    """
    if any(called(node) in _REGISTRATIONS for node in source.calls()):
        return []
    found, aliases = [], {each.local: each.name for each in source.imports if each.is_renamed}
    for call in source.calls():
        name = last_name(call.func)
        name = aliases.get(name, name)
        if name == "BCELoss" or (name == "binary_cross_entropy" and not _is_float(call.args[:1])):
            found.append(source.problem("half-binary-cross-entropy", call, name))
    return found


def _is_float(arguments):
    """Return whether an argument is cast in the call: ``binary_cross_entropy(scores.float(), …)``."""
    return any(called(node) in ("float", "double") for node in arguments)
