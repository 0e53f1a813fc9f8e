"""One small tree of errors.

Owns: every exception class that ampcompat raises on purpose.
Must not touch: torch.
The surprise: every user error is also a ``RuntimeError``, because scripts written for Apex catch that,
and each more specific one is also the built-in that a Python programmer would expect.
"""

import functools
import inspect


class AmpError(RuntimeError):
    """A mistake that the user can mend; the message says what was expected, what came, what to do."""


class AmpTypeError(AmpError, TypeError):
    """An argument of the wrong type."""


class AmpValueError(AmpError, ValueError):
    """An argument of the right type with a value that makes no sense."""


class AmpNotImplementedError(AmpError, NotImplementedError):
    """Something that was asked for and that cannot be done, such as a banned function under casts."""


class GradientOverflowError(AmpError, FloatingPointError):
    """Gradients were inf or nan where the step could not be skipped, or the user asked to be stopped."""


def told_plainly(door):
    """Decorate a door: an ``AmpError`` leaves it without the rooms that it came through, so the user's line stands last."""

    @functools.wraps(door)
    def plain(*args, **kwargs):
        try:
            return door(*args, **kwargs)
        except AmpError as error:
            raise error.with_traceback(None) from error.__cause__

    plain.__signature__ = inspect.signature(door)  # for inspect.getfullargspec, which does not look through wrappers
    return plain
