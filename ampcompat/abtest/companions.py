"""Who else listens to a recorded run: the forensics of skipped steps, the meter of memory.

Owns: ``listeners``, and how what the others find becomes events of the journal.
Must not touch: what they find.
The surprise: the recorder comes last among the listeners. It may end the run after a step, and by then the others have heard
of that step too.
"""

import weakref

from ..errors import AmpError
from ..memory import Estimate
from ..parts import footprint
from ..runtime.forensics import Forensics
from ..runtime.memory_watch import MemoryWatch

#: Steps in which memory is measured, besides every 200th. Not the first, and some after the skips that a dynamic scale may begin
#: with, since an optimizer has no state before it has stepped.
MEASURED = (1, 2, 5, 10, 20, 50, 100)


class Findings:
    """Turns what a ``Forensics`` has found into events, each once."""

    def __init__(self, forensics):
        self._forensics = forensics
        self._told = 0

    def step_ended(self, following):
        """Hear that a step has ended, and the number of the one that follows; None if none does."""

    def new_events(self):
        """Return the events of what was found since the last time."""
        new = self._forensics.findings[self._told :]
        self._told += len(new)
        return [{"finding": text, "of_step": step} for step, text in new]


class Held(MemoryWatch):
    """A ``MemoryWatch`` that tells events: bytes by kind after each step that was measured, beside the formula's."""

    def __init__(self):
        super().__init__(first=MEASURED)
        self._session = None
        self._trained = []  # (whether it is an optimizer, weak reference to it), to predict what they hold
        self._predicted = None
        self._told = None

    def initialized(self, session, models, optimizers):
        """Count what these hold."""
        super().initialized(session, models, optimizers)
        self._session = weakref.ref(session)
        self._trained += [(False, weakref.ref(each)) for each in models] + [(True, weakref.ref(each)) for each in optimizers]

    def step_ended(self, following):
        """Keep what was measured; begin to measure the following step if that is one to be."""
        if following is None:
            self.closed(None)
        else:
            self.begin_step(following)

    def new_events(self):
        """Return an event if there is a new reading."""
        if self.reading is self._told:
            return []
        self._told = self.reading
        self._predicted = self._predicted or self._prediction()
        return [{"memory": self.reading.record(), "predicted": self._predicted, "measured": list(self.measured)}]

    def _prediction(self):
        """Return the formula's answer as ``Memory`` has it, or None where this optimizer cannot be asked."""
        session = self._session()
        living = [(is_optimizer, reference()) for is_optimizer, reference in self._trained]
        models = [each for is_optimizer, each in living if each is not None and not is_optimizer]
        optimizers = [each for is_optimizer, each in living if each is not None and is_optimizer]
        if session is None or not models:
            return None
        with session.process_casts.paused():
            try:
                found = footprint.existing(models, optimizers, session.policy)
            except AmpError:
                return None
        return Estimate.of(found, session.policy.opt_level).record()


def listeners(recorder, diagnoses=True, measures_memory=True):
    """Return the observers of a recorded run; ``recorder`` is told what the others find."""
    forensics = [Forensics(says=False)] if diagnoses else []
    held = [Held()] if measures_memory else []
    recorder.sources += [Findings(each) for each in forensics] + held
    return forensics + held + [recorder]
