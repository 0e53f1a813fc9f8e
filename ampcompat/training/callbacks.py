"""``SessionCallbacks``: what an optimizer's adapter asks and tells its session."""

from ..optimizers.untracked_gradients import Passes
from ..optimizers.written_params import Writes
from .initialize import Preparation


class SessionCallbacks:
    """A ``Session``, as the adapters of its optimizers see it. A copy of an optimizer keeps it, and so its session."""

    def __init__(self, session):
        self.observers = session.observers
        self.passes = Passes()
        self.writes = Writes()
        self._session = session

    def step_context(self, weights):
        """Return the context manager of a step; ``weights()`` returns the weights that the step changes."""
        return self._session.process_casts.step_context(weights)

    def bind_casts(self, function):
        """Return ``function`` wrapped to run with the casts that are active now."""
        return self._session.process_casts.backend.bind_casts(function)

    def first_scaler(self):
        """Return the ``LossScaler`` that methods with Apex's names use."""
        return self._session.scalers[0]

    def are_weights_shared_by_hand(self):
        """Return whether ranks may share weights without a data-parallel wrapper."""
        return self._session.ddp_wrappers.are_weights_shared_by_hand()

    def step_skipped(self, loss_id, scaler):
        """Announce a step that is skipped, after the update of the scale."""
        self._session.notices.overflow(loss_id, scaler)
        for observer in self.observers:
            observer.step_skipped(self._session, loss_id, scaler)

    def scaled_gradients_used(self, adapter):
        """Warn of a step on scaled gradients of a backward pass whose ``scale_loss`` did not get this optimizer."""
        self._session.notices.scaled_gradients_used(adapter)

    def unscaled_gradients_used(self, adapter):
        """Warn of a step on half gradients of a backward pass without ``scale_loss``."""
        self._session.notices.unscaled_gradients_used(adapter)

    def optimizer_copied(self, adapter):
        """Replace the methods of a copy of an optimizer."""
        with Preparation(self._session) as preparation:
            preparation.attach(adapter)
            preparation.commit()

    def __deepcopy__(self, memo):
        return self
