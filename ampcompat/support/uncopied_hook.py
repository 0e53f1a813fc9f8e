"""A module hook that copies and pickles of the module do not run."""

from contextlib import nullcontext


class ModuleHook:
    """A forward hook or pre-hook. Copies and pickles of its module have one that does nothing.

    That of a pickle is from the standard library, so that the file can be loaded where ampcompat is not installed.

    Args:
        call: called with ``arguments`` followed by what torch passes to the hook; its return value is ignored.
    """

    def __init__(self, call, *arguments):
        self._call = call
        self._arguments = arguments

    def __call__(self, module, *values):
        self._call(*self._arguments, module, *values)

    def __deepcopy__(self, memo):
        return ModuleHook(_do_nothing)

    def __reduce__(self):
        return getattr, (nullcontext(), "__exit__")


def _do_nothing(*values):
    """Do nothing. Unlike functions of the standard library, every torch compiles it into a graph."""
