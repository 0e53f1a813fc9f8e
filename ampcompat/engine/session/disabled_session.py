"""``DisabledSession``, the session of ``initialize(enabled=False)``: scripts run as without amp.

It has the methods of ``Session`` that ``amp`` calls, ``state_dict`` too, where Apex raised.
"""

from contextlib import contextmanager

from ...support.weak_list import WeakList
from ..casting.cast_backend import NoCastBackend
from . import process_state


def disable(verbosity, models=(), optimizers=()):
    """Leave models and optimizers as they are. Without an open session, make a ``DisabledSession`` the current one."""
    session = process_state.current()
    if session is None:
        session = DisabledSession(verbosity)
        process_state.sessions.append(session)
    elif session.enabled:
        session.notices.say(
            "ampcompat: initialize(enabled=False) leaves its models alone; what was initialized before stays enabled."
        )
    session.disable(models, optimizers)


class DisabledSession:
    """A session that does nothing; ``enabled`` is False."""

    enabled = False
    policy = None
    choice = None
    scalers = ()

    def __init__(self, verbosity=1):
        self.verbosity = verbosity
        self.cast_backend = NoCastBackend()
        self._models, self._optimizers = WeakList(), WeakList()

    def disable(self, models, optimizers):
        """Remember models and optimizers for the session of a later ``initialize`` that is enabled."""
        for known, new in ((self._models, models), (self._optimizers, optimizers)):
            for each in new:
                known.add(each)

    def hand_over(self, session):
        """Disable in a ``Session`` what is disabled here."""
        session.disable(list(self._models), list(self._optimizers))

    def configuration_of(self, optimizers):
        """Return None: nothing is configured."""

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
        process_state.leave(self)
