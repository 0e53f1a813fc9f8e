"""The device type in the new script: that of its own device, or a new variable after the imports."""

import ast

import libcst as cst

from ..reading.code_files import PYTHON
from ..reading.names import bound_in, dotted, inside
from ..reading.source import Source
from . import syntax
from .variable_passing import ScriptScopes

DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
_DEVICE = ast.dump(ast.parse(DEVICE, mode="eval").body)


def place_device(text, name):
    """Return (the source, whether the variable must be set after the imports).

    A ``device`` of the script is used instead of a new variable.

    Args:
        text: the new source, in which the variable is read but not set.
        name: the variable's name.
    """
    script = ScriptScopes(Source("", text.encode("utf-8"), PYTHON), {name})
    readers = [scope for scope, _ in script.named]
    for scope in readers[0].around() if readers else ():
        own = _own_device(scope, readers) if all(scope in each.around() for each in readers) else None
        if own is not None:
            return syntax.renamed(cst.parse_module(text), name, own).code, False
    return text, bool(readers)


def _own_device(scope, readers):
    """Return the source of the device's type from a variable that a scope sets once, before it is needed; or None."""
    for at, statement in enumerate(scope.node.body):
        name, source = _device_of(statement) or (None, None)
        if name is None or _times_set(scope.node, name) > 1:
            continue
        inner = [each for reader in readers for each in reader.around() if each.is_function and each is not scope]
        before = scope.node.body[:at] if scope in readers else ()
        if not any(name in bound_in(each.node) for each in inner) and not any(map(_reads_device_type, before)):
            return source
    return None


def _times_set(node, name):
    """Return how often a name is set in the body of a function or module."""
    return sum(isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == name
               for each in inside(node))  # fmt: skip


def _reads_device_type(statement):
    is_definition = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
    return not is_definition and any("GradScaler" in (dotted(each) or "") for each in ast.walk(statement))


def _device_of(statement):
    """Return (name, source of the device's type) for ``device = torch.device(...)``; None for other statements."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    name, value = statement.targets[0].id, statement.value
    if isinstance(value, ast.Call) and dotted(value.func) == "torch.device":
        return name, name + ".type"
    return (name, name) if ast.dump(value) == _DEVICE else None
