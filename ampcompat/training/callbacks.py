"""``OptimizerCallbacks``: what optimizers ask and tell their session."""

from ..optimizers.session_callbacks import SessionCallbacks
from .initialize import Preparation


class OptimizerCallbacks(SessionCallbacks):
    """The callbacks of one ``Session``."""

    def __init__(self, session):
        super().__init__(session.observers)
        self._session = session

    def step_context(self, weights):
        """Casts are off in the step, and cached casts of the weights are cleared after it."""
        return self._session.process_casts.step_context(weights)

    def bind_casts(self, function):
        """Bind the casts of this thread."""
        return self._session.process_casts.backend.bind_casts(function)

    def first_scaler(self):
        """Return the scaler of the loss 0."""
        return self._session.scalers[0]

    def are_weights_shared_by_hand(self):
        """Return whether there are other ranks and no wrapper."""
        return self._session.ddp_wrappers.are_weights_shared_by_hand()

    def step_skipped(self, loss_id, scaler):
        """Print it, and call the observers."""
        self._session.notices.overflow(loss_id, scaler)
        for observer in self.observers:
            observer.step_skipped(self._session, loss_id, scaler)

    def scaled_gradients_used(self, adapter):
        """Print a warning."""
        self._session.notices.scaled_gradients_used(adapter)

    def unscaled_gradients_used(self, adapter):
        """Print a warning."""
        self._session.notices.unscaled_gradients_used(adapter)

    def optimizer_copied(self, adapter):
        """Take the copy into the session."""
        with Preparation(self._session) as preparation:
            preparation.attach(adapter)
            preparation.commit()
