"""Which private names of torch the package's source mentions, found by reading it."""

import ast
import pathlib
import re

import torch

import ampcompat
from ampcompat.launch.cuda_redirect import name_table

ROOT = pathlib.Path(ampcompat.__file__).parent
#: Private by spelling only: Python's own, and ours that are set by a string.
NOT_TORCH = frozenset(
    "_make _fields _asdict _replace _getframe _exit _args_from_interpreter_flags _accepts _real _amp_stash "
    "_repr_html_".split()
)
TORCH_NAME = re.compile(r"torch(\.\w+)+$")


def sources():
    """Return [(path, syntax tree)] of the package, but for the table itself."""
    return [(path, ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py")) if path.name != "private_api.py"]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def torch_attributes():
    """Return the private attributes of what users of torch handle every day."""
    module, tensor = torch.nn.Linear(1, 1), torch.ones(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    things = [module, tensor, optimizer, torch.autograd.function.BackwardCFunction]
    return {name for thing in things for name in dir(thing) if is_private(name)}


def own_names(trees):
    """Return every name that the package itself defines: of variables, functions, classes, attributes."""
    found = set()
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "__slots__" for each in node.targets):
                found.update(ast.literal_eval(node.value))
    return found


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported_from_torch(tree):
    """Return {local name: dotted name in torch} of a module's imports."""
    found = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch" and alias.asname:
                    found[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                found[alias.asname or alias.name] = node.module + "." + alias.name
    return found


def dotted(node, imports):
    """Return the dotted name in torch that an expression spells, or None."""
    if isinstance(node, ast.Name):
        return imports.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, imports)
        return owner and owner + "." + node.attr
    return None


def string(node):
    """Return the string that a node of the syntax tree is, or None."""
    value = getattr(node, "value" if hasattr(node, "value") else "s", None)  # ``s`` until Python 3.7
    return value if type(node).__name__ in ("Constant", "Str") and isinstance(value, str) else None


def asked(node):
    """Return (name, whom) of an attribute that is read, also by ``getattr`` or ``hasattr`` with a string."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        return string(node.args[1]), node.args[0]
    return (node.attr, node.value) if isinstance(node, ast.Attribute) else (None, None)


def mentioned():
    """Yield (file, what) of each private name: dotted if the source names its owner, else the name alone."""
    trees = sources()
    own, of_torchs = own_names(trees), torch_attributes()
    for path, tree in trees:
        imports, place = imported_from_torch(tree), str(path.relative_to(ROOT))
        for found in imports.values():
            if any(is_private(part) for part in found.split(".")):
                yield place, found
        for node in ast.walk(tree):
            text = string(node)
            if text and TORCH_NAME.match(text) and any(is_private(part) for part in text.split(".")):
                yield place, text
            name, owner = asked(node)
            if name is None or not is_private(name) or name in NOT_TORCH:
                continue
            of_torch = dotted(owner, imports)
            if of_torch:
                yield place, of_torch + "." + name
            elif name not in own or (name in of_torchs and not is_self(owner)):
                yield place, name
    for row in name_table.rows():
        for name in row.names:
            if any(is_private(part) for part in (row.owner + "." + name).split(".")):
                yield "launch/cuda_redirect/name_table.py", row.owner + "." + name
