"""One small tree of errors.

Owns: every exception class that ampcompat raises on purpose.
Must not touch: torch.
The surprise: every user error is also a ``RuntimeError``, because scripts written for Apex catch that,
and each more specific one is also the built-in that a Python programmer would expect.
"""


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
