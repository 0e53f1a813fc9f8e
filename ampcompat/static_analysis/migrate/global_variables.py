"""The new script's variables that several functions need, as global ones; and the type of its device."""

import ast
import sys

from ..reading.names import dotted, inside, string
from ..reading.source import Source
from .parsed_script import indentation

DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
_DEVICE = ast.dump(ast.parse(DEVICE, mode="eval").body)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def make_global(text, variables):
    """Return (the source, notes, the variables that became global).

    A function declares the variables global that it sets and that a function elsewhere reads.

    Args:
        text: the new source.
        variables: the names of its new variables.
    """
    uses = list(_uses(_parsed(text).tree, (), variables))
    lines, declared = text.split("\n"), {}
    for name in variables:
        setting = [around[0] for node, around in uses if node.id == name and isinstance(node.ctx, ast.Store)]
        reading = [around for node, around in uses if node.id == name and isinstance(node.ctx, ast.Load)]
        if any(not set(_visible(around)).intersection(setting) for around in reading):
            for scope in dict.fromkeys(setting):
                declared.setdefault(scope, []).append(name)
    scopes = (each for each in declared if not isinstance(each, ast.Module))
    functions = sorted(scopes, key=lambda each: -each.lineno)
    for function in functions:
        at = _line(function.body[string(getattr(function.body[0], "value", None)) is not None])
        lines.insert(at - 1, "{}global {}".format(_indentation(function, lines), ", ".join(declared[function])))
    note = "{}() sets {}, which other functions read, as global variables"
    notes = [note.format(each.name, ", ".join(declared[each])) for each in functions[::-1]]
    return "\n".join(lines), notes, {name for each in functions for name in declared[each]}


def place_device(text, name):
    """Return (the source, whether the variable with the type of the device is to be set after the imports).

    It is set where a scope around one of its uses sets a ``device``, once, before the use. Functions that do so need no
    other value.

    Args:
        text: the new source, in which the variable is read but not set.
        name: the variable's name.
    """
    uses, lines, added, own = list(_uses(_parsed(text).tree, (), (name,))), text.split("\n"), [], set()
    for scope in {scope for _, around in uses for scope in _visible(around)}:
        first = min((node.lineno for node, around in uses if around[0] is scope), default=sys.maxsize)
        for statement, following in zip(scope.body, scope.body[1:]):
            device, source = _device_of(statement)
            if device is not None and statement.lineno < first and _times_set(scope, device) == 1:
                line = _line(following)
                while lines[line - 2].strip().startswith("#") or not lines[line - 2].strip():
                    line -= 1
                added.append((line, f"{_indentation(scope, lines)}{name} = {source}"))
                if isinstance(scope, _FUNCTIONS):
                    own.add(scope)
                break
    for line, new in sorted(added, reverse=True):
        lines.insert(line - 1, new)
    return "\n".join(lines), any(around[0] not in own for _, around in uses)


def _parsed(text):
    return Source("", text.encode("utf-8"))


def _uses(node, around, variables):
    """Yield (node, the functions, classes and module around it, the innermost first) of the names of variables."""
    if isinstance(node, ast.Name) and node.id in variables:
        yield node, around
    inner = (node,) + around if isinstance(node, _FUNCTIONS + (ast.ClassDef, ast.Module)) else around
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, inner, variables)


def _visible(around):
    """Return the scopes whose variables can be read in the innermost of some scopes."""
    return around[:1] + tuple(each for each in around[1:] if not isinstance(each, ast.ClassDef))


def _line(statement):
    """Return the first line of a statement, or of its first decorator."""
    return min([statement.lineno] + [each.lineno for each in getattr(statement, "decorator_list", ())])


def _indentation(function, lines):
    return indentation(lines[_line(function.body[-1]) - 1])


def _times_set(scope, name):
    """Return how often a name is set in the body of a function or module."""
    names = [each for each in inside(scope.body) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return sum(each.id == name for each in names)


def _device_of(statement):
    """Return (name, source of the device's type) for ``device = torch.device(...)``; (None, None) for others."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None, None
    name, value = statement.targets[0].id, statement.value
    if isinstance(value, ast.Call) and dotted(value.func) == "torch.device":
        return name, name + ".type"
    return (name, name) if ast.dump(value) == _DEVICE else (None, None)
