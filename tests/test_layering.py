"""The package's layers: modules import downwards and in no cycle, have docstrings, and parse on Python 3.7."""

import ast
import functools
import pathlib
import re
import sys

import ampcompat
from ampcompat.abtest.recording.event_sources import EventSource
from ampcompat.engine.casting.cast_backend import CastBackend
from ampcompat.support.observer_interface import Observer

ROOT = pathlib.Path(ampcompat.__file__).parent
#: From the ground up, the folders and modules of ``ampcompat/``: each imports only from those before it.
ORDER = """
    errors opt_levels support engine observers amp sessions apex mmcv static_analysis launch abtest diagnostics as_apex
    cuda_redirect cli __main__
""".split()
#: The same within some of them; ``.`` is every module that is not named, and comes last if it is not there.
WITHIN = {
    "support": "torch_compat",
    "engine": "op_table casting loss_scaling masters optimizers models session amp_names",
    "observers": ". skipped_steps step_statistics memory",
    "static_analysis": "rules reading",
    "abtest": "packed_numbers schema report_data planned_run row_names number_format recording judging report running",
}
#: Classes whose subclasses inherit the docstrings of what they override: name -> the methods.
OVERRIDES = {
    **dict.fromkeys(["CastBackend", "OpTableBackend"], vars(CastBackend)),
    **dict.fromkeys(
        ["Observer", "SamplingObserver", "EventSource", "FinalEvent"], {**vars(Observer), **vars(EventSource)}
    ),
}
FILES = sorted(ROOT.rglob("*.py"))
#: The folders site/ are not part of the package: they have the alias ``apex``, and the module that Python starts with.
MODULES = [path for path in FILES if "site" not in path.relative_to(ROOT).parts]
IDS = [str(path.relative_to(ROOT)) for path in MODULES]


@functools.lru_cache(maxsize=None)
def tree_of(path):
    """Return the parsed module, for all tests once."""
    return ast.parse(path.read_text())


def top_of(dotted):
    """Return the height of the folder or module of ``ampcompat/`` that a module is or is in; 0 for the version."""
    return 0 if dotted == "__version__" else ORDER.index(dotted.split(".")[0])


def layer_of(dotted):
    """Return the height of a module, and its height in its folder."""
    top, _, inner = dotted.partition(".")
    names = WITHIN.get(top, "").split()
    named = [name for name in names if (inner + ".").startswith(name + ".")] or ["."]
    return top_of(dotted), (names + ["."]).index(max(named, key=len))


def dotted_name(path):
    """Return a module's name relative to the package; that of a package is its folder's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = set(map(dotted_name, MODULES))


def imported(path):
    """Return the names, relative to the package, of the modules that a module imports.

    Imports within functions and for type checkers count too.
    """
    package = path.relative_to(ROOT).parts[:-1]
    found, tree = set(), tree_of(path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = tuple((node.module or "").split(".")) if node.module else ()
        if node.level:
            base = package[: len(package) - (node.level - 1)] + parts
        elif parts[0] == ROOT.name:
            base = parts[1:]
        else:
            continue
        for alias in node.names:
            name = ".".join(base + (alias.name,))
            found.add(name if name in NAMES or not base else ".".join(base))
    return found - {dotted_name(path)}


def own_name(path):
    """Return the dotted name of a module, relative to the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports_up(height):
    """Return the imports of a module that is higher than the importing one, those for types and late ones included."""
    return [
        f"{dotted_name(path)} imports {name}"
        for path in FILES
        for name in sorted(imported(path))
        if dotted_name(path) and height(name) > height(dotted_name(path))
    ]


def test_every_import_between_the_top_level_folders_points_down():
    entries = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set(ORDER) == entries - {"__init__", "__pycache__"}
    assert imports_up(top_of) == []


def test_every_import_within_a_folder_points_down():
    assert imports_up(layer_of) == []


def test_no_imports_form_a_cycle_late_imports_included():
    imports = {dotted_name(path): imported(path) for path in MODULES}
    outside = True
    while outside:  # a module that imports none of the others left, or that none of them imports, is in no cycle
        used = set().union(*imports.values())
        outside = {name for name, found in imports.items() if name not in used or not found & set(imports)}
        imports = {name: found - outside for name, found in imports.items() if name not in outside}
    assert imports == {}


def test_the_top_level_is_short():
    entries = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len([path for path in entries if path.is_dir()]) <= 10
    assert len([path for path in entries if path.suffix == ".py"]) <= 8


def test_no_two_classes_have_one_name():
    """Apart from private ones, and from those that Apex and MMCV have under one name each."""
    theirs = {"LossScaler", "FusedSGD", "FP16_Optimizer"}
    homes = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in theirs:
                homes.setdefault(node.name, []).append(own_name(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_every_module_has_a_docstring():
    assert [own_name(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_every_module_is_python_3_7_without_bare_asserts():
    older = {"feature_version": (3, 7)} if sys.version_info >= (3, 8) else {}
    asserts = [
        f"{path}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(), str(path), **older))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []


def test_every_public_function_and_class_has_a_docstring():
    bare = [
        f"{own_name(path)}.{node.name}"
        for path in MODULES
        for node in public_definitions(tree_of(path))
        if not ast.get_docstring(node)
    ]
    assert bare == []


def public_definitions(tree):
    """Yield the public functions and classes of a module and their public methods, setters and overrides apart.

    A method that overrides one of ``CastBackend`` or ``Observer`` inherits its docstring.
    """
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            bases = [getattr(base, "id", None) for base in getattr(node, "bases", ())]
            inherited = {name for base in bases for name in OVERRIDES.get(base, ())}
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                setter = any(isinstance(mark, ast.Attribute) for mark in getattr(inner, "decorator_list", ()))
                is_public = isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_")
                if is_public and not setter and inner.name not in inherited:
                    yield inner


def test_only_patching_sets_attributes_on_objects_that_are_not_ours():
    allowed = {
        "support/patching.py",
        "engine/casting/wrappers.py",  # marks the wrapper that it has just made
        "engine/amp_names.py",  # a view: what is set on it goes to process_state
    }
    calls = [
        name
        for name, path in zip(IDS, MODULES)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr")
    ]
    assert set(calls) - allowed == set()


def test_only_trace_and_the_engine_watch_calls_of_modules_functions_and_operations():
    ways = re.compile(r"register_(module_)?forward|\b(Torch)?(Function|Dispatch)Mode\b|Optimizer, .__init__")
    found = [name for name, path in zip(IDS, MODULES) if ways.search(path.read_text())]
    allowed = re.compile(r"engine/|observers/\w+\.py|support/torch_compat/")
    assert [name for name in found if not allowed.match(name)] == []


def test_only_torch_compat_features_reads_versions():
    assert [name for name, path in zip(IDS, MODULES) if "torch.__version__" in path.read_text()] == [
        "support/torch_compat/features.py"
    ]
