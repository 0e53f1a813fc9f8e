"""What a cast backend must do, written down once.

Owns: ``CastBackend`` (the contract of O1 and O4) and ``NoCasts``, the null object of the other levels.
Must not touch: models, optimizers, scalers.
The surprise: ``paused`` and ``entered`` are per thread, ``open`` is for the whole process.
"""

import abc
from contextlib import contextmanager

from .switch import NOTHING


class CastBackend(abc.ABC):
    """Makes the functions of torch run in the dtype that the op table gives them.

    One backend serves one session. Between ``open`` and the undoing of the patch stack that ``open`` was given, a
    function in the table casts its floating tensor arguments as its row says, in every thread of the process, except
    where ``paused`` is in force. Every thing that ``open`` changes is undone by that stack.
    """

    #: The name that users choose it by.
    name = "abstract"

    @abc.abstractmethod
    def open(self, patches):
        """Put the casts in force, process-wide.

        Args:
            patches: the ``PatchStack`` that undoes it.
        """

    @abc.abstractmethod
    def active(self):
        """Return whether a function called now, in this thread, would be cast."""

    @abc.abstractmethod
    def paused(self):
        """Return a context manager with casts off in this thread: nestable, restored when the body raises."""

    @abc.abstractmethod
    def entered(self):
        """Return a context manager with casts on in this thread, unless the thread has paused them.

        Wrapped models enter it in ``forward``: a thread that torch knows nothing of computes as the main one does.
        """

    @abc.abstractmethod
    def confine(self):
        """Be open only where a thread stands in a ``region``. To be called before ``open``."""

    @abc.abstractmethod
    def region(self):
        """Return a context manager with casts on in this thread, even if it has paused them: the innermost word counts."""

    @abc.abstractmethod
    def as_now(self, function):
        """Return ``function`` running, whenever it is called, under the casts that are in force in this thread now."""

    @abc.abstractmethod
    def clear_cache(self):
        """Forget every cast of a weight."""

    @abc.abstractmethod
    def wrap(self, function, rule):
        """Return ``function`` obeying ``rule`` (a name of ``tables.op_rules``) while casts are active.

        Args:
            function: any callable; tensors may be nested in its arguments and keywords.
            rule: "half", "float", "promote", "sequence" or "banned".
        """


class NoCasts(CastBackend):
    """The backend of O0, O2, O3 and O5: nothing to cast, so nothing above needs an ``if``."""

    name = "none"

    def open(self, patches):
        """Change nothing."""

    def active(self):
        """Return False."""
        return False

    @contextmanager
    def paused(self):
        """Change nothing."""
        yield

    entered = paused

    def confine(self):
        """Change nothing."""

    def region(self):
        """Change nothing."""
        return NOTHING

    def as_now(self, function):
        """Return ``function`` itself."""
        return function

    def clear_cache(self):
        """Forget nothing."""

    def wrap(self, function, rule):
        """Return ``function`` itself."""
        return function
