"""Run code around the import of a module. This runs when Python starts, so it does not import torch."""

import importlib.util
import sys


class ImportHook:
    """A finder that lets the body of each of some modules run inside a context manager, once.

    The module's own loader loads it: only ``exec_module`` of that loader object is wrapped, for one call.

    Args:
        names: dotted names of modules that are not imported yet.
        around: ``around(name)`` returns the context manager in which the module's body runs.
    """

    def __init__(self, names, around):
        self._names = set(names)
        self._around = around
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
            del loader.exec_module  # the class's method again
            with self._around(name):
                execute(module)
            self._names.discard(name)
            if not self._names:
                self.stop()

        loader.exec_module = exec_module
