"""Which files of a code base a file imports, found by their paths, and whether one of them uses ``amp``."""

import os

from ...errors import AmpError
from ...support.files import read
from .apex_names_used import uses
from .source import Source

#: Modules with ``amp.initialize``, and how their names begin in the text of a file.
_AMP, _HINTS = ("apex.amp", "ampcompat", "apex.fp16_utils"), (b"apex", b"ampcompat")


class ProjectImports:
    """The Python files of a code base, by the names under which they are imported.

    Args:
        paths: the files.
    """

    def __init__(self, paths):
        self._files, self._by_last_name = set(), {}
        for path in paths:
            parts = _module_parts(path)
            self._files.add(path)
            self._by_last_name.setdefault(parts[-1] if parts else "", []).append((parts, path))

    def imported_files(self, source):
        """Return the files of the code base that a ``Source`` imports, also with ``from package import module``."""
        modules = {(name, each.level) for each in source.imports for name in (each.module, each.full_name)}
        return {self._find(source.path, name, level) for name, level in modules} - {None, source.path}

    def inherited(self, source, exported):
        """Return the names of Apex that a ``Source`` imports from other files: name -> full name.

        Args:
            exported: path -> the names of Apex that this file binds, as ``Names.apex``, of the files that may use it.
        """
        found = {}
        for each in source.imports:
            path = self._find(source.path, each.module, each.level) if each.name else None
            names = exported.get(path, {}) if path != source.path else {}
            if each.name == "*":
                found.update({name: full for name, full in names.items() if "." not in name})
            elif each.name in names:
                found[each.local] = names[each.name]
        return found

    def _find(self, importer, module, level):
        """Return the file of a module, or None. An absolute name may begin at any folder above the importer."""
        wanted = [part for part in module.split(".") if part]
        if level:
            found = _files_of(_folder_above(importer, level), wanted)
            return next((path for path in found if path in self._files), None)
        fitting = [
            (_common(importer, path), path)
            for parts, path in self._by_last_name.get(wanted[-1] if wanted else "", ())
            if wanted and parts[-len(wanted) :] == wanted
        ]
        return max(fitting)[1] if fitting else None


def _module_parts(path):
    parts = os.path.splitext(path)[0].split(os.sep)
    return parts[:-1] if parts[-1] == "__init__" else parts


def _common(one, other):
    """Return how many folders two paths have in common, to prefer nearer files."""
    return len(os.path.commonprefix([one.split(os.sep), other.split(os.sep)]))


def _folder_above(path, level):
    """Return the folder that the dots of a relative import mean in a file."""
    for _ in range(level):
        path = os.path.dirname(path)
    return path


def _files_of(folder, parts):
    """Return the files that may be a module in a folder: a file of its name, or that of a package."""
    stem = os.path.join(folder, *parts)
    return stem + ".py", os.path.join(stem, "__init__.py")


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
            data = read(file)
        except AmpError:
            return True
        source = Source(file, data)
        if source.broken or (any(hint in data for hint in _HINTS) and _has_amp(source)):
            return True
        waiting += _below(source, folder)
    return False


def _has_amp(source):
    names = [use.name for use in uses(source)] + [each.module for each in source.imports if not each.level]
    return any(name == start or name.startswith(start + ".") for name in names for start in _AMP)


def _below(source, folder):
    """Return the files of the modules that a ``Source`` imports, and of the packages that they are in."""
    found = []
    for each in source.imports:
        base = _folder_above(source.path, each.level) if each.level else folder
        parts = each.full_name.split(".")
        candidates = (path for count in range(1, len(parts) + 1) for path in _files_of(base, parts[:count]))
        found += filter(os.path.isfile, candidates)
    return found
