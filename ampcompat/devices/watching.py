"""Do something around the import of a module, whenever that is.

Owns: ``ImportWatch``, a finder that finds nothing by itself.
Must not touch: what is imported, and how; it knows no torch and imports next to nothing, since it runs when Python
starts.
The surprise: the module's own loader loads it. Only that loader object's ``exec_module`` is lengthened, for one call.
"""

import importlib.util
import sys


class ImportWatch:
    """Execute each of these modules inside a context, once.

    Args:
        names: dotted names of modules that are not imported yet.
        around: ``around(name)`` returns the context manager in which the module's body runs.
    """

    def __init__(self, names, around):
        self._names = set(names)
        self._around = around
        self._searching = False

    def start(self):
        """Watch from now on."""
        sys.meta_path.insert(0, self)

    def stop(self):
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        """Return the spec that everybody else finds, so that this watch hears when it has been loaded."""
        if name not in self._names or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._lengthen(spec.loader, name)
        return spec

    def _lengthen(self, loader, name):
        execute = loader.exec_module

        def execute_inside(module):
            del loader.exec_module  # the class's own again
            with self._around(name):
                execute(module)
            self._names.discard(name)
            if not self._names:
                self.stop()

        loader.exec_module = execute_inside
