"""Problems around ``amp.scale_loss``: other backward passes, and clipping."""

import ast

from ...model.bindings import dotted, last_name
from ...model.calls import CLIPS, SCALE_LOSS, is_backward, is_clipping
from ...model.flow import steps_of, together
from ...model.rule_texts import finding

HANDLES = ("apex.amp.init", "apex.amp.amp.init")


def check(source, bindings, has_masters):
    """Return the findings around the ``scale_loss`` blocks of a ``Source``.

    Args:
        has_masters: whether a level with master weights, or an unknown level, is requested.
    """
    found = []
    for _, steps in source.scopes:
        blocks = _blocks(steps, bindings)
        for step in steps if blocks else ():
            inside = [name for node in step.blocks for name in _scaled_names(node, bindings)]
            if inside:
                found += _in_block(source, step, inside)
            elif any(together(block, step) for block in blocks):
                found += _plain_backward(source, step)
                found += _clipping(source, step) if has_masters else ()
    found += _clipping_methods(source, bindings) if has_masters else ()
    return sorted(set(found).union(_handles(source, bindings)))


def _blocks(steps, bindings):
    """Return the ``scale_loss`` blocks among steps, one for each set of conditions."""
    return list({step.conditions: step for step in steps if _scaled_names(step.node, bindings)}.values())


def _clipping_methods(source, bindings):
    """Yield findings on methods that clip, in classes where another method has the ``scale_loss`` block.

    A method with its own backward pass is left out: it clips the gradients of that pass.
    """
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            steps = [list(steps_of(method)) for method in methods]
            blocks = [block for each in steps for block in _blocks(each, bindings)]
            for each in steps if blocks else ():
                has_backward = any(is_backward(call) for step in each for call in step.calls())
                for step in () if has_backward else each:
                    if any(together(block, step) for block in blocks):
                        yield from _clipping(source, step)


def _scaled_names(statement, bindings):
    """Return the names of the scaled losses, if a statement is a ``with amp.scale_loss(…) as name``."""
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return []
    items = [item for item in statement.items if isinstance(item.context_expr, ast.Call)]
    scaled = [item for item in items if bindings.full_name(item.context_expr.func) in SCALE_LOSS]
    return [dotted(item.optional_vars) or "" for item in scaled]


def _in_block(source, step, scaled):
    for call in step.calls():
        if last_name(call.func) in CLIPS:
            yield finding("clip-before-unscale", source.place(call.lineno))
        elif is_backward(call) and dotted(call.func.value) and dotted(call.func.value) not in scaled:
            yield finding("plain-backward", source.place(call.lineno), f"{dotted(call.func.value)}.backward()")


def _plain_backward(source, step):
    for call in step.calls():
        if is_backward(call):
            yield finding(
                "plain-backward", source.place(call.lineno), "{}.backward()".format(dotted(call.func.value) or "…")
            )


def _clipping(source, step):
    for call in step.calls():
        if is_clipping(call):
            yield finding("clip-model-params", source.place(call.lineno))


def _handles(source, bindings):
    """Yield findings on methods of the handle that ``amp.init`` returns."""
    handles = set()
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if bindings.full_name(node.value.func) in HANDLES:
                handles |= {dotted(target) for target in node.targets if dotted(target)}
    for node in source.nodes:
        if isinstance(node, ast.Call) and last_name(node.func) in ("scale_loss", "wrap_optimizer"):
            if isinstance(node.func, ast.Attribute) and dotted(node.func.value) in handles:
                yield finding("old-handle", source.place(node.lineno), dotted(node.func))
