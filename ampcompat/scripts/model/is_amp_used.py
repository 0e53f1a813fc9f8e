"""Whether a script uses ``amp``, in its own file or in a neighboring file that it imports."""

import ast
import os

from . import code_files
from .apex_names_used import uses
from .bindings import Bindings
from .source import Source

#: Modules with ``amp.initialize``, and how their names begin in the text of a file.
_AMP, _HINTS = ("apex.amp", "ampcompat", "apex.fp16_utils"), (b"apex", b"ampcompat")


def uses_amp(path):
    """Return whether a script may call ``amp.initialize``, Apex's or ampcompat's; nothing is imported.

    Imports are followed to files below the script's folder, the only ones that can belong to it. Files that cannot be
    read or parsed, or that are not Python, count as using it.

    Args:
        path: of the script.
    """
    folder, waiting, seen = os.path.dirname(os.path.abspath(path)), [os.path.abspath(path)], set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            data = code_files.read(file)
        except code_files.Unreadable:
            return True
        source = Source(file, data, code_files.PYTHON)
        if source.broken or (any(hint in data for hint in _HINTS) and _has_amp(source)):
            return True
        waiting += _imported_files(source, folder)
    return False


def _has_amp(source):
    names = [use.name for use in uses(source, Bindings(source.nodes))]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return any(name == start or name.startswith(start + ".") for name in names for start in _AMP)


def _imported_files(source, folder):
    """Return the files of the modules that a ``Source`` imports, and of the packages that they are in."""
    found = []
    for node in source.nodes:
        if isinstance(node, ast.Import):
            wanted = [(folder, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder
            for level in range(node.level):
                base = os.path.dirname(source.path) if level == 0 else os.path.dirname(base)
            wanted = [(base, ".".join(filter(None, [node.module, alias.name]))) for alias in node.names]
        else:
            continue
        for base, name in wanted:
            found += _files_of(base, name.split("."))
    return found


def _files_of(base, parts):
    found = []
    for count in range(1, len(parts) + 1):
        stem = os.path.join(base, *parts[:count])
        found += [each for each in (stem + ".py", os.path.join(stem, "__init__.py")) if os.path.isfile(each)]
    return found
