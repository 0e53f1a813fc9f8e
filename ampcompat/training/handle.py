"""``Handle``: what ``amp.init`` returns (Apex's API before 2019), also ``_amp_state.handle``.

Methods that are no longer supported raise an error that names their replacement.
"""

from __future__ import annotations

from ..errors import AmpError
from . import state


class Handle:
    """Apex's handle on one session."""

    def __init__(self, session):
        self._session = session

    def is_active(self) -> bool:
        """Return whether casts are active in this thread."""
        return self._session.casts.active()

    def _disable_casts(self):
        return self._session.casts.paused()

    def _clear_cache(self):
        self._session.casts.clear_cache()

    def _deactivate(self):
        """Stop casting functions; ``amp.init`` and ``amp.initialize`` start it again.

        Models and optimizers stay as they are; a session that has none is closed.
        """
        session = self._session
        if session.policy is not None:
            session.process_casts.stop()
        elif session.enabled and session in state.sessions:
            session.close()

    @property
    def has_cache(self) -> bool:
        """Casts of weights are always cached."""
        return True

    def scale_loss(self, loss, optimizer):
        """Raise an ``AmpError`` that names the replacement, ``amp.scale_loss``."""
        raise AmpError(
            "handle.scale_loss is the API of before 2019. Use model, optimizer = amp.initialize(model, optimizer) and "
            "with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()."
        )

    def wrap_optimizer(self, optimizer, num_loss=1):
        """Raise an ``AmpError`` that names the replacement, ``amp.initialize``."""
        raise AmpError(
            "handle.wrap_optimizer is the API of before 2019. Use model, optimizer = amp.initialize(model, optimizer, "
            "num_losses={}).".format(num_loss)
        )
