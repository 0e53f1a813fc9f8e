"""``DisabledSession``, the session of ``initialize(enabled=False)``: scripts run as without amp."""

from contextlib import nullcontext

from . import process_state
from .training_session import Session


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
    session.disable([*models, *optimizers])


class DisabledSession(Session):
    """A session that does nothing; ``enabled`` is False. ``state_dict`` is empty, where Apex raised."""

    enabled = False

    def __init__(self, verbosity=1):
        super().__init__(verbosity=verbosity)

    def disable(self, disabled):
        """Remember models and optimizers for the session of a later ``initialize`` that is enabled."""
        self._disabled.update(disabled)

    def hand_over(self, session):
        """Disable in a ``Session`` what is disabled here."""
        session.disable(list(self._disabled))

    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Return a context manager that yields the loss itself."""
        return nullcontext(loss)

    def load_state_dict(self, state_dict):
        """Ignore the state: a checkpoint of an enabled run loads into a disabled one."""
