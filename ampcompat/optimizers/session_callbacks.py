"""``SessionCallbacks``: what an optimizer's adapter asks and tells its session (see ``training.callbacks``)."""

import enum
import threading
from abc import ABC, abstractmethod

from .written_params import Writes


class Stage(enum.Enum):
    """The state of an optimizer within an iteration. Calls that it does not allow raise an error."""

    READY = "ready for a backward pass"
    SCALED = "holding gradients that are still scaled"
    DELAYED = "holding gradients of a pass with delay_unscale whose scale was 1"


class Passes(threading.local):
    """The number of scaled backward passes (scale not 1) that have ended in this thread, and the last one's scale."""

    ended = 0
    scale = 1.0

    def add(self, scale):
        """Count one."""
        self.ended, self.scale = self.ended + 1, scale


class SessionCallbacks(ABC):
    """The session, as the adapters of its optimizers see it. A copy of an optimizer keeps it, and so its session.

    Args:
        observers: the session's list of ``Observer`` objects.
    """

    def __init__(self, observers):
        self.observers = observers
        self.passes = Passes()
        self.writes = Writes()

    @abstractmethod
    def step_context(self, weights):
        """Return the context manager of a step; ``weights()`` returns the weights that the step changes."""

    @abstractmethod
    def bind_casts(self, function):
        """Return ``function`` wrapped to run with the casts that are active now."""

    @abstractmethod
    def first_scaler(self):
        """Return the ``LossScaler`` that methods with Apex's names use."""

    @abstractmethod
    def are_weights_shared_by_hand(self):
        """Return whether ranks may share weights without a data-parallel wrapper."""

    @abstractmethod
    def step_skipped(self, loss_id, scaler):
        """Called for every step that is skipped, after the update of the scale."""

    @abstractmethod
    def scaled_gradients_used(self, adapter):
        """Called for a step on scaled gradients of a backward pass whose ``scale_loss`` did not get this optimizer."""

    @abstractmethod
    def unscaled_gradients_used(self, adapter):
        """Called for a step on half gradients of a backward pass without ``scale_loss``."""

    @abstractmethod
    def optimizer_copied(self, adapter):
        """Called with the adapter of every copy of an optimizer."""

    def __deepcopy__(self, memo):
        return self
