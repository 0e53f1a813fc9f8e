"""The new script's variables that several functions need, as global ones; and the type of its device."""

import ast

import libcst as cst

from ..reading.code_files import PYTHON
from ..reading.names import bound_in, dotted, inside, string
from ..reading.source import Source
from . import syntax

DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
_DEVICE = ast.dump(ast.parse(DEVICE, mode="eval").body)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = _FUNCTIONS + (ast.ClassDef,)


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


def place_device(text, name, others):
    """Return (the source, whether the variable with the type of the device is set after the imports).

    A ``device`` of the script is used instead of it where all that read it can read that. If only the scope that sets
    the other variables has a ``device``, or a function that reads it is called before, that scope sets the type, too.

    Args:
        text: the new source, in which the variable is read but not set.
        name: the variable's name.
        others: the other new variables.
    """
    tree = _parsed(text).tree
    readers = [around for _, around in _uses(tree, (), (name,))]
    for scope in _visible(readers[0]) if readers else ():
        if all(scope in _visible(each) for each in readers):
            at, own = _own_device(scope, readers)
            if own is not None and not _calls(scope.body[:at], _reaching(scope.body, readers)):
                return syntax.renamed(cst.parse_module(text), name, own).code, False
    stored = [around[0] for node, around in _uses(tree, (), others) if isinstance(node.ctx, ast.Store)]
    lines = text.split("\n")
    for scope in sorted(set(stored) if readers else (), key=lambda each: -getattr(each, "lineno", 0)):
        at, own = _own_device(scope, [each for each in readers if scope in _visible(each)])
        if own is not None and at + 1 < len(scope.body):
            line = _line(scope.body[at + 1])
            while lines[line - 2].strip().startswith("#") or not lines[line - 2].strip():
                line -= 1
            lines.insert(line - 1, f"{_indentation(scope, lines)}{name} = {own}")
    return "\n".join(lines), bool(readers)


def _parsed(text):
    return Source("", text.encode("utf-8"), PYTHON)


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
    line = lines[_line(function.body[-1]) - 1]
    return line[: len(line) - len(line.lstrip())]


def _own_device(scope, readers):
    """Return (place, the source of the device's type) of the statement with which a scope sets its device, once, and
    before it is needed; the source is None if there is none.
    """
    for at, statement in enumerate(scope.body):
        name, source = _device_of(statement)
        if name is None or _times_set(scope, name) > 1:
            continue
        inner = {each for reader in readers for each in reader if isinstance(each, _FUNCTIONS)} - {scope}
        before = scope.body[:at] if any(reader[0] is scope for reader in readers) else ()
        if not any(name in bound_in(each) for each in inner) and not any(map(_reads_device_type, before)):
            return at, source
    return 0, None


def _times_set(scope, name):
    """Return how often a name is set in the body of a function or module."""
    names = [each for each in inside(scope.body) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return sum(each.id == name for each in names)


def _reads_device_type(statement):
    is_definition = isinstance(statement, _DEFINITIONS)
    return not is_definition and any("GradScaler" in (dotted(each) or "") for each in ast.walk(statement))


def _reaching(statements, readers):
    """Return the names of the functions and classes, of some statements, that contain one of the scopes of
    ``readers``, and of those that name one of these.
    """
    scopes = {scope for reader in readers for scope in reader}
    defined = [each for each in statements if isinstance(each, _DEFINITIONS)]
    found = {each.name for each in defined if each in scopes}
    more = found
    while more:
        more = {each.name for each in defined if _names_one(each, found)} - found
        found |= more
    return found


def _calls(statements, names):
    """Return whether statements other than definitions name one of some functions."""
    return any(_names_one(each, names) for each in statements if not isinstance(each, _DEFINITIONS))


def _names_one(node, names):
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _device_of(statement):
    """Return (name, source of the device's type) for ``device = torch.device(...)``; (None, None) for others."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None, None
    name, value = statement.targets[0].id, statement.value
    if isinstance(value, ast.Call) and dotted(value.func) == "torch.device":
        return name, name + ".type"
    return (name, name) if ast.dump(value) == _DEVICE else (None, None)
