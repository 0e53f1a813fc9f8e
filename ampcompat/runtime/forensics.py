"""Say why steps are skipped: what was inf or nan, where it came first, how large it was before, and what to try.

Owns: ``Forensics``, the observer behind ``diagnose=True``, ``run --diagnose`` and ``ab``.
Must not touch: the run: it neither changes a number nor waits for the device, until a step was skipped.
The surprise: evidence is kept as unread numbers on the device, a record per pass, because the verdict on a pass may be
read many passes later (fused optimizers), and its weights and gradients are long gone by then.

What it costs while nothing is wrong: two small operations for each module's output, each gradient that comes back to it
and each param's gradient, and some to collect them. Measured on one core of a CPU: about 0.1 ms for each module, which makes
a step of 8 layers of width 256 half as long again, and is lost in the noise at width 1024.
"""

import atexit
import functools
import weakref
from collections import deque

from ..backends import compiling
from ..parts.exponents import Counts
from ..parts.listening import Listener
from ..parts.magnitudes import Peaks, Reading, largest
from ..parts.notices import is_first_rank
from ..parts.reasons import WHOLE, explain, number
from .evidence import Record, evidence_of
from .observers import Observer

#: One pass in so many is counted into the histogram, and about so many values of each of its gradients.
COUNT_EVERY, SAMPLE = 10, 1 << 16

#: Passes at a scale that never skips that are looked at together: one wait for the device in so many.
LOOK_EVERY = 50


class Forensics(Observer):
    """Explains skipped steps.

    Args:
        says: whether to print; otherwise ``findings`` alone has the answers.
        sums_up: whether to print a histogram of the gradients at the end.

    Attributes:
        findings: (step, text) of every skipped step, in the order in which they became known. Steps count from 0, for
        each
            optimizer.
    """

    def __init__(self, says=True, sums_up=False):
        self.findings = []
        self._says = says
        self._sums_up = sums_up
        self._counts = Counts(SAMPLE)
        self._passes = 0
        self._never_skipped = []  # records of passes at a static scale, to be looked at together
        self._is_spoiled = False
        self._is_first_rank = True
        self._pass = _nobody  # refers to the pass that is going on
        self._listener = None
        self._models = []  # (weak model, what comes after the names in it)
        self._names = {}  # id(param) -> (weak param, name)
        self._losses = {}  # loss_id -> the losses of passes that were not judged yet
        self._records = deque()
        self._peaks = {kind: Peaks() for kind in ("outputs", "arriving", "gradients")}
        self._steps = weakref.WeakKeyDictionary()
        self._good_passes = {}
        self._last = {}  # loss_id -> of its last finding (cause, record, full text, step in which it was told)

    # -- what the session tells ----------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Begin to listen to the models."""
        self._session = weakref.ref(session)
        self._is_first_rank = is_first_rank()
        if self._listener is None:
            atexit.register(self._finish_run, self._session)
            self._listener = Listener(compiling.is_compiling)
            self._listener.is_in_backward = lambda: self._pass() is not None
        known = [model for model, _ in self._known_models()]
        new = [model for model in models if not any(model is each for each in known)]
        for model in new:
            label = self._label(model) if len(known) + len(new) > 1 else ""
            self._models.append((weakref.ref(model), label))
            self._listener.attend(model, functools.partial(_name_in, type(model).__name__, label))
            for name, param in model.named_parameters():
                self._names[id(param)] = (weakref.ref(param), name + label)

    def before_backward(self, backward):
        """Remember the loss, and that gradients come from now on."""
        if self._listener is None:
            return
        if self._pass is not _nobody:  # the pass before ended with an error
            self._losses.pop(backward.loss_id, None)
        self._pass = weakref.ref(backward)
        value = largest(backward.loss.detach())
        if value is not None:
            self._losses.setdefault(backward.loss_id, []).append(("loss", value))

    def after_backward(self, backward):
        """Put on record what a pass that was judged has left behind."""
        self._pass = _nobody
        if backward.verdict is None or self._listener is None:
            return
        self._forget_good_ones()
        record = self._record(backward)
        for kind, peaks in self._peaks.items():
            peaks.take_in(getattr(record, kind))
        if record.scaler.checks:
            self._records.append(record)
            backward.verdict.tell(functools.partial(self._finish, record))  # after the optimizers have heard of it
        elif not self._is_spoiled:
            self._never_skipped.append(record)
            if len(self._never_skipped) >= LOOK_EVERY:
                self._look_back()
        if self._passes % COUNT_EVERY == 0:
            self._is_first_rank = is_first_rank()
            self._counts.take_in([gradient for _, gradient in self._gradients(backward.adapters)])
        self._passes += 1
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
        """Sum up, and take the hooks away."""
        self._finish_run(lambda: session)
        atexit.unregister(self._finish_run)
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        self._records.clear()
        self._models.clear()

    def histogram(self):
        """Return the ``parts.exponents.Histogram`` of the true gradients so far: a sample of passes and values."""
        return self._counts.read()

    def explanation(self, loss_id):
        """Return why the last step of a loss was skipped, in full, or None."""
        return self._last[loss_id][2] if loss_id in self._last else None

    # -- records -------------------------------------------------------------------------------------------------------

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
            outputs=Reading([each[:2] for each in heard.outputs], high),
            output_dtypes=[each.dtype for each in heard.outputs],
            arriving=Reading([each[:2] for each in heard.gradients], high, backward.scale),
            gradients=Reading(self._magnitudes(backward.adapters), high),
            peaks=before,
        )

    def _gradients(self, adapters):
        """Yield (name, gradient) of what a pass has left, in true units."""
        for adapter in adapters:
            params = [pair for pair in adapter.pairs()] + [(param, param) for param in adapter.own_masters()]
            for number, (param, master) in enumerate(params):
                if master.grad is not None:
                    reference, name = self._names.get(id(param), (_nobody, None))
                    if reference() is not param:
                        name = "param {} of {}".format(number, type(adapter.optimizer).__name__)
                    yield name, master.grad

    def _magnitudes(self, adapters):
        found = [(name, largest(gradient)) for name, gradient in self._gradients(adapters)]
        return [(name, value) for name, value in found if value is not None]

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

    # -- findings ------------------------------------------------------------------------------------------------------

    def _conclude(self, session, record, skips):
        # By the time that a pass which nobody skipped is looked at, it has spoiled the weights.
        models = self._known_models() if skips else []
        evidence = evidence_of(record, session.policy, models, self._good_passes.get(record.loss_id, 0), skips)
        cause, facts, advice = explain(evidence)
        full = "{} What to try: {}".format(facts, advice)
        earlier = self._last.get(record.loss_id)
        lines, told = [facts, "What to try: " + advice], record.step
        if earlier is not None and earlier[0] == (cause, advice):
            told = earlier[3]
            lines = ["As in step {}: {}, at scale {}.".format(told, cause, number(evidence.scale))]
        self._last[record.loss_id] = ((cause, advice), record, full, told)
        verb = "was skipped" if skips else "went through with inf or nan: a static loss scale skips nothing"
        self.findings.append((record.step, " ".join(lines)))
        if self._says:
            head = "ampcompat: step {} (loss scaler {}) {}. ".format(record.step, record.loss_id, verb)
            session.notices.say(head + "\n    ".join(lines))

    def _look_back(self):
        """Explain the first bad one of the passes that could not be skipped; what comes after it says nothing new."""
        records, self._never_skipped = self._never_skipped, []
        flags = [
            (index, flag)
            for index, record in enumerate(records)
            for flag in record.losses.non_finite() + record.gradients.non_finite()
        ]
        bad = [index for index, count in Reading(flags).read() if count]
        if bad:
            self._is_spoiled = True
            self._conclude(self._session(), records[min(bad)], skips=False)

    def _finish_run(self, session):
        """Say what is not said yet: of passes that nobody has looked at, and in all."""
        if session() is None:
            return
        if self._never_skipped:
            self._look_back()
        for scaler in session().scalers if self._records else ():
            scaler.settle()
        if self._sums_up and self._passes and self._is_first_rank:
            count = len(self.findings)
            told = "none was inf or nan"
            if count:
                told = "{} {} explained above".format(count, "is" if count == 1 else "are")
            table = self.histogram().table("True gradients by magnitude, a sample")
            session().notices.say("ampcompat: of {} backward passes {}. {}".format(self._passes, told, table))
            self._sums_up = False

    def _known_models(self):
        """Return (model, label) of the models that still live."""
        found = [(reference(), label) for reference, label in self._models]
        return [(model, label) for model, label in found if model is not None]

    def _label(self, model):
        """Return what comes after the names in one of several models."""
        kind = type(model).__name__
        alike = sum(1 for known, _ in self._known_models() if type(known) is type(model))
        return " of {} {}".format(kind, alike + 1) if alike else " of {}".format(kind)


def _nobody():
    return None


def _name_in(kind, label, name):
    """Return what a module of a model is called."""
    return name + label if name else WHOLE + (label[len(" of ") :] or kind)


def diagnosing(observers, wanted, sums_up=False):
    """Return observers with a ``Forensics`` among them if one is wanted."""
    if wanted and not any(isinstance(each, Forensics) for each in observers):
        return list(observers) + [Forensics(sums_up=sums_up)]
    return list(observers)


def attend(session, wanted, models):
    """See to it that a session has a ``Forensics`` if one is wanted, which listens to its earlier models too."""
    missing = diagnosing(session.observers, wanted)[len(session.observers) :]
    session.observers.extend(missing)  # in place: adapters share the list
    for forensics in missing:
        forensics.initialized(session, models, [])
