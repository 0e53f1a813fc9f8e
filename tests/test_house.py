"""The house itself: layers import downwards, every room has its plaque, the grammar is Python 3.7's."""

import ast
import pathlib
import sys

import pytest

import ampcompat

ROOT = pathlib.Path(ampcompat.__file__).parent
#: From the ground up. A module imports from its own layer and from those below.
LAYERS = ["errors", "tables", "parts", "backends", "runtime", "apex", "devices", "amp", "sessions"]
LAYERS += ["mmcv", "memory", "abtest", "cli", "__main__"]
#: Files of the alias are a package of its own, which stands on the doors.
MODULES = sorted(path for path in ROOT.rglob("*.py") if "site" not in path.relative_to(ROOT).parts)
IDS = [str(path.relative_to(ROOT)) for path in MODULES]


def layer_of(dotted):
    """Return the height of a module; the package's own names (its version) are everybody's."""
    return LAYERS.index(dotted.split(".")[0]) if dotted.split(".")[0] in LAYERS else -1


def imported(path):
    """Return the dotted names, relative to the package, that a module imports from the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            for alias in node.names:
                yield ".".join(base + tuple((node.module or alias.name).split(".")))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ampcompat."):
            yield node.module.partition(".")[2]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_imports_only_from_its_own_layer_and_below(path):
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if own == "__init__":
        pytest.skip("the package itself is the roof over all layers")
    above = [name for name in imported(path) if layer_of(name) > layer_of(own)]
    assert above == []


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_says_what_it_owns(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    if path.name == "__init__.py" and docstring.startswith(("Layer", "The desk")):
        return
    for promise in ("Owns:", "Must not touch:", "The surprise:"):
        assert promise in docstring


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_is_python_3_7_without_bare_asserts(path):
    older = {"feature_version": (3, 7)} if sys.version_info >= (3, 8) else {}
    tree = ast.parse(path.read_text(), **older)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_every_public_function_and_class_has_a_docstring(path):
    bare = []
    for node in public_definitions(ast.parse(path.read_text())):
        if not ast.get_docstring(node):
            bare.append(node.name)
    assert bare == []


def public_definitions(tree):
    """Yield the public functions and classes of a module and the public methods of those classes, setters apart."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                setter = any(isinstance(mark, ast.Attribute) for mark in getattr(inner, "decorator_list", ()))
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and not setter:
                    yield inner


def test_only_patching_sets_attributes_on_objects_that_are_not_ours():
    allowed = {
        "parts/patching.py",
        "parts/forwards.py",  # a class's forward stays as long as its marked instances, not as long as a session
        "backends/rules.py",  # marks the wrapper that it has just made
        "apex/state_view.py",  # a look-alike: what is set on it goes to runtime.state
    }
    calls = [
        name
        for name, path in zip(IDS, MODULES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr")
    ]
    assert set(calls) - allowed == set()


def test_only_torch_facts_reads_versions():
    assert [name for name, path in zip(IDS, MODULES) if "torch.__version__" in path.read_text()] == [
        "tables/torch_facts.py"
    ]


def test_the_package_docstring_names_every_room():
    words = set(ampcompat.__doc__.replace(",", " ").replace(":", " ").replace("/", " ").replace(";", " ").split())
    assert [name for name, path in zip(IDS, MODULES) if path.stem not in words | {"__init__"}] == []
