"""Report when many consecutive steps are skipped: lowering the loss scale does not help."""

import weakref

from ...errors import GradientOverflowError
from ...support.live_objects import live_items
from ...support.observer_interface import Observer
from .diagnosis import OverflowDiagnosis, find_diagnosis
from .skip_messages import explain


class SkipLimits(Observer):
    """The ``SkipLimit`` of each configuration of a session, which is freed with its configuration."""

    def __init__(self):
        self._limits = weakref.WeakKeyDictionary()  # configuration -> its ``SkipLimit``

    def set(self, configuration, limit, raises):
        """Set the limit of a configuration; it is reported once more. For the arguments see ``SkipLimit``."""
        if configuration in self._limits:
            self._limits[configuration].set(limit, raises)
        else:
            self._limits[configuration] = SkipLimit(limit, raises)

    def before_backward(self, backward):
        """Keep the data needed if the step of this pass reaches the limit."""
        limit = self._limits.get(backward.configuration)
        if limit is not None:
            limit.before_backward(backward)

    def after_backward(self, backward):
        """Record the pass, or stop recording when a step was not skipped."""
        limit = self._limits.get(backward.configuration)
        if limit is not None and limit.scaler is not None:
            limit.after_backward(backward)

    def step_skipped(self, session, loss_id, scaler):
        """Start recording one step before the limit; report at the limit.

        Raises:
            GradientOverflowError: the limit is reached, and ``raises`` is set.
        """
        for configuration, limit in live_items(self._limits):
            if scaler in configuration.scalers:
                limit.step_skipped(session, loss_id, scaler, configuration.notices)

    def closed(self, session):
        for _, limit in live_items(self._limits):
            limit.stop()


class SkipLimit:
    """Prints or raises once, with the cause, when a loss of one configuration has too many consecutive skipped steps.

    The cause comes from the session's ``OverflowDiagnosis``. Without one, hooks are registered only for the last step
    before the limit.

    Args:
        limit: the number of consecutive skipped steps; a scale at its minimum counts as the limit.
        raises: whether to raise ``GradientOverflowError`` instead of printing.
    """

    def __init__(self, limit, raises):
        self._diagnosis = OverflowDiagnosis(prints=False)
        self._last_passes = {}  # loss_id -> (loss, scale, weak references to the records)
        self.set(limit, raises)

    def set(self, limit, raises):
        """Set the arguments again; the limit is reported once more."""
        self._limit = limit
        self._raises = raises
        self._has_reported = False
        self.stop()

    def before_backward(self, backward):
        """See ``SkipLimits``."""
        records = list(map(weakref.ref, backward.records))
        self._last_passes[backward.loss_id] = backward.loss.detach(), backward.scale, records
        if self.scaler is not None:
            self._diagnosis.before_backward(backward)

    def after_backward(self, backward):
        """See ``SkipLimits``."""
        self._diagnosis.after_backward(backward)
        if backward.scaler is self.scaler and not backward.scaler.skips_in_a_row:
            self.stop()

    def step_skipped(self, session, loss_id, scaler, notices):
        """See ``SkipLimits``; ``notices`` prints."""
        self._diagnosis.step_skipped(session, loss_id, scaler)
        if self._has_reported:
            return
        skips = scaler.skips_in_a_row
        if skips < self._limit and not scaler.is_at_floor():
            if skips == self._limit - 1 and find_diagnosis(session) is None:
                self.scaler = scaler
                self._diagnosis.initialized(session, session.models, ())
            return
        self._has_reported = True
        message = (
            f"ampcompat: {skips} steps in a row were skipped (loss scaler {loss_id}, scale {scaler.loss_scale():g}), "
            f"and lowering the scale does not help. {self._explanation(session, loss_id, scaler)}"
        )
        self.stop()
        if self._raises:
            raise GradientOverflowError(message)
        notices.say(message)

    def _explanation(self, session, loss_id, scaler):
        facts = (find_diagnosis(session) or self._diagnosis).last_facts(loss_id)
        if facts is None:  # the first skipped step is at the limit: its gradients are available, activations are not
            loss, scale, references = self._last_passes[loss_id]
            records = [reference() for reference in references if reference() is not None]
            facts = self._diagnosis.facts_without_record(session, loss_id, scaler, loss, scale, records)
        _, text, advice = explain(facts._replace(is_persistent=True))
        return f"{text} What to try: {advice}"

    def stop(self):
        """Stop recording: remove the hooks."""
        self.scaler = None  # whose skipped steps are being recorded
        self._diagnosis.stop()


def set_skip_limit(session, configuration, skip_limit):
    """Add a ``SkipLimit`` for a configuration to the ``SkipLimits`` of a session, or change the existing one.

    Args:
        skip_limit: (limit, raises), see there.
    """
    if not any(scaler.checks_overflow for scaler in configuration.scalers):
        return  # without observers, a pass at a static scale of 1 does nothing
    limits = next((each for each in session.observers if isinstance(each, SkipLimits)), None)
    if limits is None:
        limits = SkipLimits()
        session.observers.append(limits)
    limits.set(configuration, *skip_limit)
