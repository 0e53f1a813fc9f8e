"""Exceptions that ampcompat raises on purpose.

Each is also a ``RuntimeError``, which scripts written for Apex catch, and the specific ones also derive from the
built-in exception that a Python programmer would expect.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class AmpError(RuntimeError):
    """An error that the user can correct; the message says what was expected, what was given and what to do."""


class AmpTypeError(AmpError, TypeError):
    """An argument of the wrong type."""


class AmpValueError(AmpError, ValueError):
    """An argument of the right type with an invalid value."""


class AmpNotImplementedError(AmpError, NotImplementedError):
    """A request that cannot be fulfilled, such as a banned function under casts."""


class GradientOverflowError(AmpError, FloatingPointError):
    """Gradients were inf or nan and the step could not be skipped, or the user asked for an error."""


def hide_internal_frames(function: Function) -> Function:
    """Decorate a public function: the traceback of an ``AmpError`` ends at the user's line, without internal frames."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except AmpError as error:
            raise error.with_traceback(None) from error.__cause__

    # For inspect.getfullargspec, which does not look through wrappers.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]
