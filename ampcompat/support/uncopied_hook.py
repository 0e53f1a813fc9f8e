"""A module hook that copies and pickles of the module do not run."""


class ModuleHook:
    """A forward hook or pre-hook. A copy or pickle of its module gets one that does nothing.

    Args:
        call: called with ``arguments`` followed by what torch passes to the hook; its return value is ignored.
    """

    def __init__(self, call=None, *arguments):
        self._call = call
        self._arguments = arguments

    def __call__(self, module, *values):
        if self._call is not None:
            self._call(*self._arguments, module, *values)

    def __reduce__(self):  # copy.deepcopy calls it too
        return ModuleHook, ()
