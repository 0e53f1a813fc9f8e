"""Say why steps are skipped: what was inf or nan, where it came first, how large it was before, and what to try.

Owns: ``Forensics``, the observer behind ``diagnose=True``, ``run --diagnose`` and ``ab``.
Must not touch: the run: it neither changes a number nor waits for the device, until a step was skipped.
The surprise: evidence is kept as unread numbers on the device, a record per pass, because the verdict on a pass may be read
many passes later (fused optimizers), and its weights and gradients are long gone by then.

What it costs while nothing is wrong: two small operations for each module's output, each gradient that comes back to it and
each param's gradient, and some to collect them; a third or so of a step of a small network, a percent or two of a large one.
"""

import functools
import weakref
from collections import deque

from ..backends import compiling
from ..parts.listening import Listener
from ..parts.magnitudes import Peaks, Reading, largest
from ..parts.reasons import WHOLE, explain, number
from .evidence import Record, evidence_of
from .observers import Observer

#: Passes at a scale that never skips that are looked at together: one wait for the device in so many.
LOOK_EVERY = 50


class Forensics(Observer):
    """Explains skipped steps.

    Args:
        says: whether to print; otherwise ``findings`` alone has the answers.

    Attributes:
        findings: (step, text) of every skipped step, in the order in which they became known. Steps count from 0, for each
            optimizer.
    """

    def __init__(self, says=True):
        self.findings = []
        self._says = says
        self._pass = _nobody  # refers to the pass that is going on
        self._listener = None
        self._models = []  # weakly
        self._names = {}  # id(param) -> (weak param, name)
        self._losses = {}  # loss_id -> the losses of passes that were not judged yet
        self._records = deque()
        self._peaks = {kind: Peaks() for kind in ("outputs", "arriving", "gradients")}
        self._steps = weakref.WeakKeyDictionary()
        self._good_passes = {}
        self._last = {}  # loss_id -> (cause, step, full text) of its last finding

    # -- what the session tells ------------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Begin to listen to the models."""
        if self._listener is None:
            self._listener = Listener(compiling.is_compiling)
            self._listener.is_in_backward = lambda: self._pass() is not None
        known = [model() for model in self._models]
        self._models += [weakref.ref(model) for model in models if not any(model is each for each in known)]
        several = len(self._models) > 1
        for model in models:
            self._listener.attend(model, lambda name, model=model: _name_in(model, name, several))
            for name, param in model.named_parameters():
                self._names[id(param)] = (weakref.ref(param), _name_in(model, name, several))

    def before_backward(self, backward):
        """Remember the loss, and that gradients come from now on."""
        self._pass = weakref.ref(backward)
        value = largest(backward.loss.detach())
        if value is not None:
            self._losses.setdefault(backward.loss_id, []).append(("loss", value))

    def after_backward(self, backward):
        """Put on record what a pass that was judged has left behind."""
        self._pass = _nobody
        if backward.verdict is None:
            return
        self._forget_good_ones()
        record = self._record(backward)
        for kind, peaks in self._peaks.items():
            peaks.take_in(getattr(record, kind))
        self._records.append(record)
        backward.verdict.tell(functools.partial(self._finish, record))  # after the optimizers have heard of it
        self._listener.gradients.clear()
        self._listener.expect_anew()

    def skipped(self, session, loss_id, scaler):
        """Explain the skipped step, unless another of its optimizers has asked for that already."""
        record = self._first_overflow(loss_id)
        if record is not None and self._last.get(loss_id, (None, None))[1] is not record:
            self._conclude(session, record, skips=True)

    def after_step(self, adapter):
        """Count the step."""
        self._steps[adapter] = self._steps.get(adapter, 0) + 1

    def closed(self, session):
        """Take the hooks away."""
        if self._listener is not None:
            self._listener.stop()
        self._records.clear()

    def explanation(self, loss_id):
        """Return why the last step of a loss was skipped, in full, or None."""
        return self._last[loss_id][2] if loss_id in self._last else None

    # -- records ---------------------------------------------------------------------------------------------------------

    def _record(self, backward):
        heard, high = self._listener, backward.high
        before = {kind: peaks.so_far() for kind, peaks in self._peaks.items()}
        return Record(
            step=max([self._steps.get(adapter, 0) for adapter in backward.adapters] or [0]),
            loss_id=backward.loss_id,
            scale=backward.scale,
            scaler=backward.scaler,
            verdict=backward.verdict,
            losses=Reading(self._losses.pop(backward.loss_id, []), high),
            inputs=Reading([each[:2] for each in heard.inputs], high),
            outputs=Reading([each[:2] for each in heard.outputs], high),
            output_dtypes=[each.dtype for each in heard.outputs],
            arriving=Reading([each[:2] for each in heard.gradients], high, backward.scale),
            gradients=Reading(list(self._gradients(backward.adapters)), high),
            peaks=before,
        )

    def _gradients(self, adapters):
        """Yield (name, largest magnitude) of the gradients that a pass has left, in true units."""
        for adapter in adapters:
            params = [pair for pair in adapter.pairs()] + [(param, param) for param in adapter.own_masters()]
            for number, (param, master) in enumerate(params):
                value = None if master.grad is None else largest(master.grad)
                if value is not None:
                    reference, name = self._names.get(id(param), (_nobody, None))
                    if reference() is not param:
                        name = "param {} of {}".format(number, type(adapter.optimizer).__name__)
                    yield name, value

    def _forget_good_ones(self):
        while self._records and self._records[0].verdict.answer is False:
            self._count_good(self._records.popleft())

    def _count_good(self, record):
        self._good_passes[record.loss_id] = self._good_passes.get(record.loss_id, 0) + 1

    def _finish(self, record):
        """Drop a skipped step's record when all its optimizers have heard of it."""
        self._records = deque(each for each in self._records if each is not record)

    def _first_overflow(self, loss_id):
        """Return the oldest record of a loss whose step was skipped and that is not finished with."""
        for record in list(self._records):
            if record.loss_id == loss_id:
                if record.verdict.overflowed():
                    return record
                self._finish(record)
                self._count_good(record)
        return None

    # -- findings --------------------------------------------------------------------------------------------------------

    def _conclude(self, session, record, skips):
        models = [model for model in (reference() for reference in self._models) if model is not None]
        evidence = evidence_of(record, session.policy, models, self._good_passes.get(record.loss_id, 0), skips)
        cause, facts, advice = explain(evidence)
        full = "{} What to try: {}".format(facts, advice)
        earlier = self._last.get(record.loss_id)
        self._last[record.loss_id] = (cause, record, full)
        lines = [facts, "What to try: " + advice]
        if earlier is not None and earlier[0] == cause:
            lines = ["As in step {}: {}, at scale {}.".format(earlier[1].step, cause, number(evidence.scale))]
        verb = "was skipped" if skips else "was not skipped, since its loss scale is static"
        self.findings.append((record.step, " ".join(lines)))
        if self._says:
            head = "ampcompat: step {} (loss scaler {}) {}. ".format(record.step, record.loss_id, verb)
            session.notices.say(head + "\n    ".join(lines))


def _nobody():
    return None


def _name_in(model, name, several):
    """Return what a module or param of a model is called: with the model's class where there are several models."""
    kind = type(model).__name__
    if not name:
        return WHOLE + kind
    return "{} of {}".format(name, kind) if several else name


def diagnosing(observers, wanted):
    """Return observers with a ``Forensics`` among them if one is wanted."""
    if wanted and not any(isinstance(each, Forensics) for each in observers):
        return list(observers) + [Forensics()]
    return list(observers)


def attend(session, wanted, models):
    """See to it that a session has a ``Forensics`` if one is wanted, which listens to its earlier models too."""
    missing = diagnosing(session.observers, wanted)[len(session.observers) :]
    session.observers.extend(missing)  # in place: adapters share the list
    for forensics in missing:
        forensics.initialized(session, models, [])
