"""The session of ``initialize(enabled=False)``: the script runs as if amp were not there.

Owns: ``DisabledSession``, a null object with the names of ``Session`` that the door calls.
Must not touch: anything.
The surprise: it answers everything, ``state_dict`` too; Apex raised there.
"""

from contextlib import contextmanager

from ..backends.base import NoCasts
from . import state
from .handle import Handle


class DisabledSession:
    """Does nothing, and says so by ``enabled``."""

    enabled = False
    policy = None
    choice = None
    scalers = ()

    def __init__(self, verbosity=1):
        self.verbosity = verbosity
        self.casts = NoCasts()
        self.handle = Handle(self)

    @contextmanager
    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Yield the loss itself."""
        yield loss

    def state_dict(self):
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state_dict):
        """Ignore it: a checkpoint of an enabled run loads into a disabled one."""

    def close(self):
        """Leave the list of open sessions."""
        if self in state.sessions:
            state.sessions.remove(self)
