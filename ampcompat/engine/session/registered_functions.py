"""Casts of the user's own functions: decorated ones (``cast_when_active``) and registered ones (``register``).

A decorated function checks at each call whether casts are active. A registered one is patched like torch's functions:
``session.process_state`` keeps the registrations, and ``ProcessCasts.open`` merges them with the op table.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from ...errors import AmpTypeError, AmpValueError, hide_internal_frames
from ...support.patching import PatchStack
from ..casting.patch_targets import replace_all
from ..op_table import expansion
from . import process_state

Function = TypeVar("Function", bound=Callable[..., Any])


def cast_when_active(function, rule):
    """Return ``function`` with its arguments cast by ``rule`` while casts are active; otherwise it costs a check."""
    last = [None, function]  # a backend, and the function as that backend wraps it

    @functools.wraps(function)
    def casting_when_active(*args, **kwargs):
        session = process_state.current()
        if session is None or not session.cast_backend.active():
            return function(*args, **kwargs)
        if last[0] is not session.cast_backend:
            last[:] = session.cast_backend, session.cast_backend.wrap(function, rule)
        return last[1](*args, **kwargs)

    return casting_when_active


def register(owner, name, rule):
    """Cast the arguments of ``owner.name`` by ``rule`` whenever casts are active, now or later.

    Raises:
        AmpValueError: ``owner`` has no such name.
        AmpTypeError: it is not callable, or it cannot be replaced.
    """
    place = getattr(owner, "__name__", owner)
    if not hasattr(owner, name):
        raise AmpValueError(f"{place} has no function {name!r} to register.")
    if not callable(getattr(owner, name)):
        raise AmpTypeError(f"{place}.{name} is not a function.")
    _check_replaceable(owner, name, place)
    process_state.registrations.append((owner, name, rule))
    session = process_state.current()
    if session is not None and session.enabled:
        try:
            session.process_casts.reopen()
        except BaseException:
            process_state.registrations.pop()
            raise


def _check_replaceable(owner, name, place):
    try:
        with PatchStack() as patches:
            replace_all(patches, [(owner, name, lambda function: function)])
    except (AttributeError, TypeError) as error:
        message = f"{place}.{name} cannot be replaced by a function that casts: {error}."
        raise AmpTypeError(message) from None


# -- the public functions: amp.half_function and the others ----------------------------------------------------------


def half_function(fn: Function) -> Function:
    """Decorate ``fn``: while casts are active, its floating tensor arguments are cast to half."""
    return cast_when_active(fn, expansion.HALF)


def float_function(fn: Function) -> Function:
    """Decorate ``fn``: while casts are active, its half tensor arguments are cast to float32."""
    return cast_when_active(fn, expansion.FLOAT)


def promote_function(fn: Function) -> Function:
    """Decorate ``fn``: while casts are active, its floating tensor arguments are cast to the widest among them."""
    return cast_when_active(fn, expansion.PROMOTE)


#: The name in AMD's fork. Here it casts to the session's low-precision dtype, as ``half_function`` does.
bfloat16_function = half_function


@hide_internal_frames
def register_half_function(module: Any, name: str) -> None:
    """Let ``module.name`` cast its floating tensor arguments to half while casts are active.

    Args:
        module: a module or a class.
        name: the name of a function, a method, a static method.

    Raises:
        ValueError: ``module`` has no such name.
    """
    register(module, name, expansion.HALF)


@hide_internal_frames
def register_float_function(module: Any, name: str) -> None:
    """Let ``module.name`` cast its half tensor arguments to float32; otherwise as ``register_half_function``."""
    register(module, name, expansion.FLOAT)


@hide_internal_frames
def register_promote_function(module: Any, name: str) -> None:
    """Let ``module.name`` cast its arguments to the widest among them; otherwise as ``register_half_function``."""
    register(module, name, expansion.PROMOTE)


register_bfloat16_function = register_half_function
