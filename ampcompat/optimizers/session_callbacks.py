"""``SessionCallbacks``: what an optimizer's adapter asks and tells its session (see ``training.callbacks``)."""

from abc import ABC, abstractmethod

from .untracked_gradients import Passes
from .written_params import Writes


class SessionCallbacks(ABC):
    """The session, as the adapters of its optimizers see it. A copy of an optimizer keeps it, and so its session.

    Args:
        observers: the session's list of ``Observer`` objects.
        notices: its ``Notices``, which print.
    """

    def __init__(self, observers, notices):
        self.observers = observers
        self.notices = notices
        self.passes = Passes()
        self.writes = Writes()

    @abstractmethod
    def run_step(self, step, weights):
        """Return what ``step()`` returns, called without casts; ``weights()`` returns the weights that it changes."""

    @abstractmethod
    def bind_casts(self, function):
        """Return ``function`` wrapped to run with the casts that are active now."""

    @abstractmethod
    def first_scaler(self):
        """Return the ``LossScaler`` that methods with Apex's names use."""

    @abstractmethod
    def find_master(self, param):
        """Return the master that a half param has, in whatever optimizer, or None."""

    @abstractmethod
    def group_added(self, adapter):
        """Called when an optimizer has got a param group after ``initialize``."""

    @abstractmethod
    def are_weights_shared_by_hand(self):
        """Return whether ranks may share weights without a data-parallel wrapper."""

    @abstractmethod
    def step_skipped(self, loss_id, scaler):
        """Called for every step that is skipped, after the update of the scale."""

    @abstractmethod
    def optimizer_copied(self, adapter):
        """Called with the adapter of every copy of an optimizer."""

    def __deepcopy__(self, memo):
        return self
