"""The device type in the new script: from its own variable, or a new one."""

import libcst as cst

from . import syntax
from .variable_passing import DEVICE, ScriptScopes


def place_device(module, names):
    """Return (the module, whether the variable must be set after the imports).

    A ``device`` of the script is used instead of a new variable; a variable that a single function reads is set there.

    Args:
        module: the new module, in which the variable is read but not set.
        names: ``NewNames``.
    """
    name = names.device
    script = ScriptScopes(module, {name})
    readers = [each for each in script.scopes if name in each.reads]
    if not readers:
        return module, False
    for scope in _shared_scopes(readers):
        own = _own_device(module, scope, readers)
        if own is not None:
            return module.visit(_Replacing(name, own)), False
    scope = _shared_scopes(readers)[0]
    if any(each.outermost() is not scope and each is not scope for each in readers):
        return module, True
    body = scope.node.body.body if scope.is_function else scope.node.body
    at = next(at for at, each in enumerate(body) if name in syntax.loaded_names(each))
    if isinstance(body[at], (cst.FunctionDef, cst.ClassDef)) and body[at].name.value != names.autocast:
        return module, True
    while at and syntax.assigned_names(body[at - 1]) & {names.flag, names.dtype}:
        at -= 1
    first = body[at]
    new = syntax.in_place_of(first, f"{name} = {DEVICE}\n")[0]
    if at and not new.leading_lines and syntax.is_import(body[at - 1]):
        new = new.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    body = [*body[:at], new, first.with_changes(leading_lines=()), *body[at + 1 :]]
    if not scope.is_function:
        return module.with_changes(body=body), False
    return module.deep_replace(scope.node.body, scope.node.body.with_changes(body=body)), False


def _shared_scopes(readers):
    """Return the scopes that are around all readers, the innermost first."""
    common = list(readers[0].around())
    for each in readers[1:]:
        around = list(each.around())
        common = [scope for scope in common if scope in around]
    return common


def _own_device(module, scope, readers):
    """Return the source of the device's type from a variable that a scope sets once, before it is needed; or None."""
    body = scope.node.body.body if scope.is_function else scope.node.body
    for at, statement in enumerate(body):
        found = _device_of(statement)
        if found is None or _times_set(scope.node, found[0]) > 1:
            continue
        inner = [each for reader in readers for each in reader.around() if each.is_function and each is not scope]
        if any(found[0] in each.bound for each in inner):
            continue
        before = body[:at] if scope in readers else ()
        if not any(_reads_device_type(each) for each in before):
            return found[1]
    return None


def _times_set(node, name):
    """Return how often a name is set in the body of a function or module."""
    targets = [each for each in syntax.own_nodes(node.body) if isinstance(each, (cst.Assign, cst.AugAssign, cst.For))]
    return sum(name in (syntax.assigned_names(each) or ()) for each in targets if not isinstance(each, cst.For))


def _reads_device_type(statement):
    is_definition = isinstance(statement, (cst.FunctionDef, cst.ClassDef))
    return not is_definition and any(
        "GradScaler" in (syntax.name_of(call.func) or "") for call in syntax.calls(statement)
    )


def _device_of(statement):
    """Return (name, source of the device's type) for ``device = torch.device(...)``; None for other statements."""
    line = syntax.first_of(statement, cst.Assign)
    if line is None or len(line.targets) != 1 or not isinstance(line.targets[0].target, cst.Name):
        return None
    name = line.targets[0].target.value
    if isinstance(line.value, cst.Call) and syntax.name_of(line.value.func) == "torch.device":
        return name, name + ".type"
    return (name, name) if syntax.text(line.value).replace("'", '"').strip("()") == DEVICE else None


class _Replacing(cst.CSTTransformer):
    """Replaces a variable by an expression."""

    def __init__(self, name, source):
        super().__init__()
        self._name, self._new = name, syntax.expression(source)

    def leave_Name(self, original_node, updated_node):
        """Replace it."""
        return self._new if updated_node.value == self._name else updated_node
