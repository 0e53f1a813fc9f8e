"""Which session the functions of ``amp`` use: ``enter`` and ``disable`` set it, ``initialized_session`` returns it."""

from ..errors import AmpError
from . import state
from .disabled import DisabledSession


def enter(session):
    """Make ``session`` the current one; close a disabled one before it."""
    current = state.current()
    if current is not session:
        if current is not None:
            current.close()
        state.sessions.append(session)


def disable(verbosity):
    """Make a ``DisabledSession`` the current one, unless a session is open."""
    session = state.current()
    if session is None:
        state.sessions.append(DisabledSession(verbosity))
    elif session.enabled:
        session.notices.say(
            "ampcompat: initialize(enabled=False) leaves its models alone; what was initialized before stays enabled."
        )


def initialized_session(caller):
    """Return the current session.

    Args:
        caller: the name of the public function that asks, for the message of the error.

    Raises:
        AmpError: ``amp.initialize`` was not called.
    """
    session = state.current()
    if session is None or (session.enabled and session.policy is None):
        raise AmpError(
            "{} was called before amp.initialize. Call model, optimizer = amp.initialize(model, optimizer, "
            "opt_level=...) first.".format(caller)
        )
    return session
