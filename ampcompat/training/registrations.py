"""Casts of the user's own functions: decorated ones (``cast_when_active``) and registered ones (``register``).

A decorated function checks at each call whether casts are active. A registered one is patched like torch's functions:
``training.state`` keeps the registrations, and ``ProcessCasts.open`` merges them with the op table.
"""

import functools

from ..errors import AmpTypeError, AmpValueError
from . import state


def cast_when_active(function, rule):
    """Return ``function`` with its arguments cast by ``rule`` while casts are active; otherwise it costs a check."""
    last = [None, function]  # a backend, and the function as that backend wraps it

    @functools.wraps(function)
    def casting_when_active(*args, **kwargs):
        session = state.current()
        if session is None or not session.casts.active():
            return function(*args, **kwargs)
        if last[0] is not session.casts:
            last[:] = session.casts, session.casts.wrap(function, rule)
        return last[1](*args, **kwargs)

    return casting_when_active


def register(owner, name, rule):
    """Cast the arguments of ``owner.name`` by ``rule`` whenever casts are active, now or later.

    Raises:
        AmpValueError: ``owner`` has no such name.
        AmpTypeError: it is not callable.
    """
    place = getattr(owner, "__name__", owner)
    if not hasattr(owner, name):
        raise AmpValueError("{} has no function {!r} to register.".format(place, name))
    if not callable(getattr(owner, name)):
        raise AmpTypeError("{}.{} is not a function.".format(place, name))
    state.registrations.append((owner, name, rule))
    session = state.current()
    if session is not None and session.enabled:
        session.process_casts.reopen()
