"""``DisabledSession``, the session of ``initialize(enabled=False)``: scripts run as without amp.

It has the methods of ``Session`` that ``amp`` calls, ``state_dict`` too, where Apex raised.
"""

from contextlib import contextmanager

from ..casting.base import NoCasts
from . import state


def disable(verbosity):
    """Make a ``DisabledSession`` the current one, unless a session is open."""
    session = state.current()
    if session is None:
        state.sessions.append(DisabledSession(verbosity))
    elif session.enabled:
        session.notices.say(
            "ampcompat: initialize(enabled=False) leaves its models alone; what was initialized before stays enabled."
        )


class DisabledSession:
    """A session that does nothing; ``enabled`` is False."""

    enabled = False
    policy = None
    choice = None
    scalers = ()

    def __init__(self, verbosity=1):
        self.verbosity = verbosity
        self.casts = NoCasts()

    @contextmanager
    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Yield the loss itself."""
        yield loss

    def state_dict(self):
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state_dict):
        """Ignore the state: a checkpoint of an enabled run loads into a disabled one."""

    def close(self):
        """Remove the session from the list of open ones."""
        state.leave(self)
