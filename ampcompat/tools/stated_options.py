"""Records the options that a script passes to ``amp.initialize``, for observers of the whole run."""

from .. import amp


class StatedOptions:
    """The options of all calls of ``amp.initialize``: for each, the last value that is not None.

    Attributes:
        options: ``{name: value}`` of its arguments; empty until the first call.
    """

    def __init__(self):
        self.options = {}

    def record(self, patches):
        """Record the calls from now on.

        Args:
            patches: the ``PatchStack`` whose ``undo`` ends it.
        """
        initialize = amp._initialize

        def recorded(stated):
            kept = {name: value for name, value in self.options.items() if stated.get(name) is None}
            self.options = {**stated, **kept}
            return initialize(stated)

        patches.set(amp, "_initialize", recorded)
