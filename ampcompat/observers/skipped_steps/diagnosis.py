"""Explain skipped steps: where inf or nan first occurred, how large the values were before, and what to try.

``OverflowDiagnosis`` is the observer of ``diagnose=True``, ``run --diagnose`` and ``ab``.
"""

import atexit
import functools
import itertools
import weakref
from collections import Counter

from ...support.live_objects import live_keys
from ...support.notices import is_first_rank
from ...support.observer_interface import Observer
from ..activations import ActivationHooks
from ..values import NamedScalars, named_maxima
from .pass_record import PassRecord, RecentPasses, read_record, weight_maxima, zero_eps
from .skip_facts import NOT_RECORDED, UNWATCHED, ModelNames
from .skip_messages import explain

#: Passes at a scale that never skips are read together: one wait for the device in this number of passes.
READ_EVERY = 50


class OverflowDiagnosis(Observer):
    """Explains skipped steps.

    It does not change any values. Whether a pass overflowed may be known many passes later (fused optimizers), when its
    gradients have been freed, so each pass leaves a record on the device. The overhead is two small operations per
    module output, gradient of an output, and param gradient: about 0.1 ms per module on one CPU core, half of a step's
    time for 8 layers of width 256, and nothing measurable at width 1024.

    Args:
        prints: whether to print; otherwise see ``findings``.
        prints_summary: whether to print at the end how many passes had which cause, and everything at any verbosity.

    Attributes:
        is_paused: whether passes are not recorded and take as long as without a diagnosis. The forward pass of a step
            that is skipped meanwhile is repeated, since the weights have not changed; if that is not possible, only the
            loss and the gradients are known.
        findings: (step, text, an earlier step with the same cause or None) of every skipped step, in the order in which
            they became known. Steps count from 0 for each optimizer.
    """

    def __init__(self, prints=True, prints_summary=False):
        self._recent = RecentPasses()
        self._findings = Findings()
        self._is_paused = False
        self._unrecorded = {}  # loss_id -> (loss, scale, weak references to records, calls) of a pass while paused
        self._prints = prints
        self._prints_summary = prints_summary
        self._verbosity = 0 if prints_summary else 1  # the least verbosity at which it prints
        self._passes = 0
        self._never_skipped = []  # records of passes at a static scale, to be read together
        self._has_nonfinite_weights = False  # after such a pass, later ones show nothing new
        self._is_first_rank = True
        self._pass = _none  # a weak reference to the pass in progress
        self._hooks = None
        self._names = ModelNames()
        self._losses = {}  # loss_id -> the losses of passes that were not checked for an overflow yet
        self._records = {}  # OverflowCheck -> PassRecord, oldest first
        self._steps = weakref.WeakKeyDictionary()  # record -> count
        self._good_passes = {}

    @property
    def findings(self):
        """See the class."""
        return self._findings.texts

    @property
    def is_paused(self):
        """Whether it is paused."""
        return self._is_paused

    @is_paused.setter
    def is_paused(self, value):
        self._is_paused = value
        if self._hooks is not None:
            self._hooks.pause(value)

    # -- callbacks of the session --------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        self._session = weakref.ref(session)
        self._is_first_rank = is_first_rank()
        if self._hooks is None:
            atexit.register(self._finish_run, self._session)
            self._hooks = ActivationHooks(lambda: self._pass() is not None)
            self._hooks.pause(self._is_paused)
        for model, name_of in self._names.add(models):
            session.patches.defer_for(model, self._forget, weakref.ref(model))  # if ``initialize`` fails after all
            self._hooks.register(model, name_of)

    def _forget(self, model):
        if self._hooks is not None:
            self._names.remove(model())
            self._hooks.forget(model())

    def before_backward(self, backward):
        if self._hooks is None:
            return
        self._unrecorded.pop(backward.loss_id, None)
        if self.is_paused:
            records = list(map(weakref.ref, backward.records))
            known = backward.loss.detach(), backward.scale, records, self._hooks.calls.take()
            self._unrecorded[backward.loss_id] = known
            return
        if self._pass is not _none:  # the previous pass ended with an error
            self._losses.pop(backward.loss_id, None)
        self._pass = weakref.ref(backward)
        self._losses.setdefault(backward.loss_id, []).extend(named_maxima([("loss", backward.loss)]))

    def after_backward(self, backward):
        """Record a pass whose gradients were checked for an overflow."""
        self._pass = _none
        if backward.overflow_check is None or self._hooks is None or self.is_paused:
            return
        for check in list(itertools.takewhile(lambda each: each.result is False, self._records)):
            self._count_good(check)
        record = self._record(backward)
        self._recent.add(record)
        if record.scaler.checks_overflow:
            check = backward.overflow_check
            self._records[check] = record
            check.callbacks.append(functools.partial(self._records.pop, check, None))  # after the optimizers' callbacks
        elif not self._has_nonfinite_weights:
            self._never_skipped.append(record)
            if len(self._never_skipped) >= READ_EVERY:
                self._read_never_skipped()
        self._is_first_rank = is_first_rank()
        self._passes += 1
        self._hooks.gradients.clear()
        self._hooks.clear_on_next_forward()

    def step_skipped(self, session, loss_id, scaler):
        """Explain the skipped step, once for all optimizers of the loss."""
        record = self._first_overflow(loss_id)
        if record is None and loss_id in self._unrecorded:
            self._explain_unrecorded(session, loss_id, scaler)
        elif record is not None and self._findings.last(loss_id)[0] is not record:
            self._explain(session, record, skipped=True)

    def after_step(self, record):
        self._steps[record] = self._steps.get(record, 0) + 1
        if self._hooks is not None:
            self._hooks.calls.clear()

    def closed(self, session):
        self._finish_run(lambda: session)
        self.stop()

    def stop(self):
        """Remove the hooks and drop the records; ``initialized`` starts over."""
        atexit.unregister(self._finish_run)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._records.clear()
        self._names.clear()
        self._findings.clear()
        self._recent.clear()

    def last_facts(self, loss_id):
        """Return the ``OverflowFacts`` of the last skipped step of a loss, or None."""
        return self._findings.last(loss_id)[1]

    def facts_without_record(self, session, loss_id, scaler, loss, scale, records):
        """Return the ``OverflowFacts`` of a skipped step that was not recorded, from its loss and gradients."""
        self.initialized(session, session.models, ())  # for the names of params
        return self._without_outputs(self._skipped_record(session, loss_id, scaler, loss, scale, records), session)

    def _without_outputs(self, record, session):
        before = self._recent.largest_before(record.number)
        facts = read_record(record, session.policy, (), before, good_passes=0, skipped=True)
        return facts._replace(missing_outputs=NOT_RECORDED)

    # -- records -------------------------------------------------------------------------------------------------------

    def _record(self, backward):
        hooks, high = self._hooks, backward.high
        losses = self._losses.pop(backward.loss_id, [])
        numbers = {"loss_id": backward.loss_id, "scale": backward.scale, "scaler": backward.scaler}
        return self._record_of(backward.records, losses, hooks.outputs, high, **numbers)._replace(
            output_gradients=NamedScalars([each[:2] for each in hooks.gradients], high, backward.scale),
            weights=NamedScalars([] if backward.scaler.checks_overflow else weight_maxima(self._names.models()), high),
        )

    def _record_of(self, records, losses, outputs, high, **numbers):
        """Return a ``PassRecord``; ``outputs``: the ``Entry`` objects that are known."""
        return PassRecord(
            number=self._recent.count,
            step=max([self._steps.get(record, 0) for record in records] or [0]),
            losses=NamedScalars(losses, high),
            param_gradients=NamedScalars(named_maxima(self._names.gradients(records)), high),
            outputs=NamedScalars([each[:2] for each in outputs], high),
            output_dtypes=[each.dtype for each in outputs],
            **numbers,
        )

    def _skipped_record(self, session, loss_id, scaler, loss, scale, records, outputs=()):
        numbers = {"loss_id": loss_id, "scale": scale, "scaler": scaler}
        return self._record_of(records, named_maxima([("loss", loss)]), outputs, session.policy.dtypes.high, **numbers)

    def _count_good(self, check):
        """Count a pass without an overflow, and drop its record."""
        loss_id = self._records.pop(check).loss_id
        self._good_passes[loss_id] = self._good_passes.get(loss_id, 0) + 1

    def _first_overflow(self, loss_id):
        """Return the oldest record of a loss with an overflow."""
        for check, record in list(self._records.items()):
            if record.loss_id == loss_id:
                if check.overflowed():
                    return record
                self._count_good(check)
        return None

    # -- findings ------------------------------------------------------------------------------------------------------

    def _explain_unrecorded(self, session, loss_id, scaler):
        loss, scale, references, calls = self._unrecorded.pop(loss_id)
        records = [reference() for reference in references if reference() is not None]
        outputs = self._hooks.replayed(calls)
        record = self._skipped_record(session, loss_id, scaler, loss, scale, records, outputs)
        if outputs:
            self._explain(session, record, skipped=True)
        else:
            self._findings.add_unrecorded(record, self._without_outputs(record, session))

    def _explain(self, session, record, skipped):
        # A step that was not skipped has already made the weights inf or nan; that is a consequence, not the cause.
        models = self._names.models() if skipped else []
        good_passes = self._good_passes.get(record.loss_id, 0)
        before = self._recent.largest_before(record.number)
        facts = read_record(record, session.policy, models, before, good_passes, skipped)
        if facts.bad_weights:
            optimizers = [record.optimizer for record in live_keys(self._steps)]
            facts = facts._replace(zero_eps=zero_eps(optimizers, session.policy.dtypes.low))
        lines = self._findings.add(record, facts)
        verb = "was skipped" if skipped else "was not skipped despite inf or nan: a static loss scale skips no steps"
        if self._prints and lines:
            head = f"ampcompat: step {record.step} (loss scaler {record.loss_id}) {verb}. "
            session.notices.say(head + "\n    ".join(lines), self._verbosity)

    def _read_never_skipped(self):
        """Explain the first pass with inf or nan among those at a scale that never skips."""
        records, self._never_skipped = self._never_skipped, []
        flags = [
            (index, flag)
            for index, record in enumerate(records)
            for flag in record.losses.nonfinite_counts() + record.param_gradients.nonfinite_counts()
        ]
        bad = [index for index, count in NamedScalars(flags).read() if count]
        if bad:
            self._has_nonfinite_weights = True
            self._explain(self._session(), records[min(bad)], skipped=False)

    def _finish_run(self, session):
        """Report the passes that were not read yet, and print the summary."""
        if session() is None:
            return
        if self._never_skipped:
            self._read_never_skipped()
        for scaler in session().all_scalers() if self._records else ():
            scaler.sync()
        if self._prints_summary and self._passes and self._is_first_rank:
            session().notices.say(self._findings.summary(self._passes), self._verbosity)
            self._prints_summary = False


class Findings:
    """The explanations of skipped steps.

    Attributes:
        texts: (step, text, an earlier step with the same cause or None) of every skipped step, in the order in which
            they became known.
    """

    def __init__(self):
        self.texts = []
        self._causes = Counter()  # (first step, cause) -> how many steps were skipped because of it
        self._last = {}  # loss_id -> its last explanation (cause and advice, record, facts, first step with them)

    def last(self, loss_id):
        """Return the ``PassRecord`` that was explained last for a loss and its ``OverflowFacts``; or (None, None)."""
        return self._last[loss_id][1:3] if loss_id in self._last else (None, None)

    def add(self, record, facts):
        """Explain a recorded pass; return the lines to print: none if the last one had the same cause."""
        cause, text, advice = explain(facts)
        earlier = self._last.get(record.loss_id)
        lines, first_step = [text, "What to try: " + advice], record.step
        if earlier is not None and earlier[0] == (cause, advice):
            first_step, lines = earlier[3], []
        self._last[record.loss_id] = ((cause, advice), record, facts, first_step)
        self._causes[first_step, cause] += 1
        same_as = None if lines else first_step
        self.texts.append((record.step, " ".join(lines) or f"As in step {first_step}: {cause}.", same_as))
        return lines

    def add_unrecorded(self, record, facts):
        """Explain a pass for which only the loss and the gradients are known."""
        _, text, advice = explain(facts._replace(missing_outputs=UNWATCHED))
        told, same_as = f"{text} What to try: {advice}", None
        earlier = self._last.get(record.loss_id)
        if earlier is not None and earlier[2].loss == facts.loss:  # nan or inf, or None for a finite loss
            same_as = earlier[3]
            told = f"As in step {same_as}, as far as is known: {UNWATCHED}."
        self.texts.append((record.step, told, same_as))

    def summary(self, passes):
        """Return a sentence on a run with this number of passes."""
        causes = ["{} as in step {} ({})".format(count, *cause) for cause, count in self._causes.items()]
        told = "{} had inf or nan".format(len(self.texts) or "none") + (": " if causes else "")
        return f"ampcompat: of {passes} backward passes {told}{', '.join(causes)}."

    def clear(self):
        """Explain the next skipped step in full."""
        self._last.clear()


def _none():
    return None


def find_diagnosis(session):
    """Return the ``OverflowDiagnosis`` of a session, or None."""
    return next((each for each in session.observers if isinstance(each, OverflowDiagnosis)), None)


def add_diagnosis(session, prints_summary=False):
    """Add an ``OverflowDiagnosis`` to a session that has none, with hooks on its existing models."""
    if find_diagnosis(session) is None:
        diagnosis = OverflowDiagnosis(prints_summary=prints_summary)
        session.observers.insert(0, diagnosis)  # before the SkipLimit, which reads its facts
        diagnosis.initialized(session, session.models, ())
