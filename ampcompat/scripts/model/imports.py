"""Which files of a code base a file imports, found by their paths."""

import ast
import os


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
        found = set()
        for node in source.nodes:
            if isinstance(node, ast.Import):
                found |= {self._find(source.path, alias.name, 0) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(self._find(source.path, node.module or "", node.level))
                for alias in node.names:
                    found.add(self._find(source.path, ".".join(filter(None, [node.module, alias.name])), node.level))
        return found - {None, source.path}

    def inherited(self, source, bindings):
        """Return the names of Apex that a ``Source`` imports from other files: name -> full name.

        Args:
            bindings: path -> ``Bindings`` of the files that may use Apex.
        """
        found = {}
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom):
                path = self._find(source.path, node.module or "", node.level)
                exported = bindings[path].apex if path in bindings and path != source.path else {}
                for alias in node.names:
                    if alias.name == "*":
                        found.update({name: full for name, full in exported.items() if "." not in name})
                    elif alias.name in exported:
                        found[alias.asname or alias.name] = exported[alias.name]
        return found

    def _find(self, importer, module, level):
        """Return the file of a module, or None. An absolute name may begin at any folder above the importer."""
        wanted = [part for part in module.split(".") if part]
        if level:
            folder = os.path.dirname(importer)
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            stem = os.path.join(folder, *wanted)
            found = [path for path in (stem + ".py", os.path.join(stem, "__init__.py")) if path in self._files]
            return found[0] if found else None
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
