"""Notice runs that no loss scale can save, and say so once.

Owns: ``SkipWatch``, which counts a session's skipped steps in a row.
Must not touch: the scale.
The surprise: it begins to listen one step before it speaks, since what it wants to know is gone afterwards. An observer
that knows better (``diagnose``) speaks in its place.
"""

from ..backends import compiling
from ..errors import GradientOverflowError
from ..parts.diagnosis import Diagnosis


class SkipWatch:
    """Watches the scalers of a session.

    Args:
        notices: where to speak.
        models: returns the session's models.
        observers: the session's.
        limit: skipped steps in a row before it speaks.
        raises: whether it raises instead.
    """

    def __init__(self, notices, models, observers, limit, raises):
        self._notices = notices
        self._models = models
        self._observers = observers
        self._limit = limit
        self._raises = raises
        self._diagnosis = None
        self._is_over = False

    def skipped(self, scaler, loss_id, loss, find_master):
        """Hear of a skipped step.

        Args:
            loss: the last loss, before scaling, or None.
            find_master: returns the master of a half param, or None.

        Raises:
            GradientOverflowError: it was asked to raise, and the limit is reached.
        """
        if self._is_over:
            return
        if scaler.skips_in_a_row < self._limit and not scaler.is_at_floor():
            if scaler.skips_in_a_row == self._limit - 1:
                self._listen()
            return
        self._is_over = True
        message = (
            "ampcompat: {} steps in a row were skipped (loss scaler {}, scale {:g}): lowering the scale does not help, "
            "something is inf or nan by itself. {}".format(
                scaler.skips_in_a_row, loss_id, scaler.loss_scale(), self._findings(loss_id, loss, find_master)
            )
        )
        if self._raises:
            raise GradientOverflowError(message)
        self._notices.say(message)

    def _findings(self, loss_id, loss, find_master):
        for text in filter(None, [observer.explanation(loss_id) for observer in self._observers]):
            return text
        findings = (self._diagnosis or Diagnosis(())).findings(loss, list(self._rows(find_master)))
        return "; ".join(findings).capitalize() + "."

    def _listen(self):
        self.close()
        self._diagnosis = Diagnosis(self._models(), compiling.is_compiling)
        self._diagnosis.listen()

    def close(self):
        """Listen no more."""
        if self._diagnosis is not None:
            self._diagnosis.stop()

    def _rows(self, find_master):
        for model in self._models():
            for name, param in model.named_parameters():
                master = find_master(param)
                yield name, param, param.grad if master is None else master.grad
