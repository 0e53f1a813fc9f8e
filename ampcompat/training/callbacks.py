"""``OptimizerCallbacks``: what optimizers ask and tell their session."""

from ..optimizers.session_callbacks import SessionCallbacks
from .initialize import Preparation


class OptimizerCallbacks(SessionCallbacks):
    """The callbacks of one ``Session``."""

    def __init__(self, session):
        super().__init__(session.observers, session.notices)
        self._session = session

    def run_step(self, step, weights):
        return self._session.process_casts.run_step(step, weights)

    def bind_casts(self, function):
        return self._session.process_casts.backend.bind_casts(function)

    def first_scaler(self):
        return self._session.scalers[0]

    def find_master(self, param):
        return self._session.masters.find(param)

    def group_added(self, adapter):
        self._session.add_masters(adapter)

    def are_weights_shared_by_hand(self):
        return self._session.ddp_wrappers.are_weights_shared_by_hand()

    def step_skipped(self, loss_id, scaler):
        self.notices.overflow(loss_id, scaler)
        for observer in self.observers:
            observer.step_skipped(self._session, loss_id, scaler)

    def optimizer_copied(self, adapter):
        with Preparation(self._session) as preparation:
            preparation.attach(adapter)
            preparation.commit()
