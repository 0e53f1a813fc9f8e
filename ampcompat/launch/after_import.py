"""Run code after the import of a module. This module is used when Python starts, so it does not import torch."""

import importlib.util
import sys


class ImportHook:
    """A finder that calls a function after each of the given modules was imported for the first time.

    The module is loaded by its own loader: only ``exec_module`` of that loader object is wrapped, for one call.

    Args:
        names: dotted names of modules that are not imported yet.
        after_import: called with the name of a module after its body has run.
    """

    def __init__(self, names, after_import):
        self._names = set(names)
        self._after_import = after_import
        self._searching = False

    def start(self):
        """Install the hook."""
        sys.meta_path.insert(0, self)

    def stop(self):
        """Remove the hook."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        """Return the spec that the other finders find, with its loader wrapped."""
        if name not in self._names or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(spec.loader, name)
        return spec

    def _wrap(self, loader, name):
        execute = loader.exec_module

        def exec_module(module):
            vars(loader).pop("exec_module", None)  # the class's method again; another hook may wrap it too
            execute(module)
            self._after_import(name)
            self._names.discard(name)
            if not self._names:
                self.stop()

        loader.exec_module = exec_module
