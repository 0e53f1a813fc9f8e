"""The handle that ``amp.init`` returned before 2019, and that ``_amp_state.handle`` still is.

Owns: ``Handle``.
Must not touch: anything; it asks its session.
The surprise: what it can no longer do, it answers with the call that does it now.
"""

from ..errors import AmpError


class Handle:
    """A view of one session."""

    def __init__(self, session):
        self._session = session

    def is_active(self):
        """Return whether functions called now, in this thread, are cast."""
        return self._session.casts.active()

    def _disable_casts(self):
        return self._session.casts.paused()

    def _clear_cache(self):
        self._session.casts.clear_cache()

    @property
    def has_cache(self):
        """Casts of weights are always cached."""
        return True

    def scale_loss(self, loss, optimizer):
        """Say what to call instead."""
        raise AmpError(
            "handle.scale_loss is the API of before 2019. Use model, optimizer = amp.initialize(model, optimizer) and "
            "with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()."
        )

    def wrap_optimizer(self, optimizer, num_loss=1):
        """Say what to call instead."""
        raise AmpError(
            "handle.wrap_optimizer is the API of before 2019. Use model, optimizer = amp.initialize(model, optimizer, "
            "num_losses={}).".format(num_loss)
        )
