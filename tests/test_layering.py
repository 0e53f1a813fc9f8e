"""The package's layers: modules import downwards and in no cycle, have docstrings, and parse on Python 3.7."""

import ast
import pathlib
import sys

import pytest

import ampcompat

ROOT = pathlib.Path(ampcompat.__file__).parent
#: From the ground up. A module imports from its own layer and from those below.
LAYERS = [
    "errors",
    "opt_levels",
    "torch_compat",
    "nested",
    "patching",
    "weak_list",
    "tensor_lists",
    "notices",
    "observer",
]
LAYERS += [
    "accumulation_groups",
    "op_table",
    "casting",
    "loss_scaling",
    "optimizers",
    "models",
    "memory",
    "diagnostics",
]
LAYERS += [
    "training",
    "apex",
    "cuda_redirect",
    "amp",
    "sessions",
    "memory_tools",
    "mmcv",
    "abtest",
    "check",
    "migrate",
    "checkpoint_files",
    "as_apex",
    "cli",
    "__main__",
]
#: The folders site/ hold the alias ``apex``, a package of its own that imports the public API.
MODULES = sorted(path for path in ROOT.rglob("*.py") if "site" not in path.relative_to(ROOT).parts)
IDS = [str(path.relative_to(ROOT)) for path in MODULES]


def layer_of(dotted):
    """Return the height of a module; names of the package itself (its version) may be imported anywhere."""
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
        pytest.skip("the package itself is above all layers")
    above = [name for name in imported(path) if layer_of(name) > layer_of(own)]
    assert above == []


def test_training_imports_neither_memory_measurement_nor_diagnostics():
    for path in ROOT.glob("training/*.py"):
        assert [
            name for name in imported(path) if name.split(".")[0] in ("memory", "memory_tools", "diagnostics")
        ] == []


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_has_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


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
        "patching.py",
        "models/forward.py",  # a class's forward stays as long as its marked instances, not as long as a session
        "casting/wrappers.py",  # marks the wrapper that it has just made
        "apex/state_view.py",  # a view: what is set on it goes to training.state
    }
    calls = [
        name
        for name, path in zip(IDS, MODULES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr")
    ]
    assert set(calls) - allowed == set()


def test_only_torch_compat_features_reads_versions():
    assert [name for name, path in zip(IDS, MODULES) if "torch.__version__" in path.read_text()] == [
        "torch_compat/features.py"
    ]
