"""The other observers of a recorded run, overflow diagnosis and memory measurement, and events from their results."""

from ..diagnostics.overflow_diagnosis import OverflowDiagnosis
from ..memory.step_observer import MemoryObserver
from .layers import LayerErrors

#: Of every eight steps five are watched for overflows, from step 5 on. The other three have no hooks; the first of them
#: still runs with cold caches, so that the times of two count: those of the steps 3, 4, 11, 12, …
CYCLE, WATCHED, FIRST = 8, 5, 3

#: Steps in which memory is measured, besides every 200th. Not the first, and some after the skips that a dynamic
#: scale may begin with, since an optimizer has no state before it has stepped.
MEASURED = (1, 2, 5, 10, 20, 50, 100)


class DiagnosisEvents:
    """Makes one event of each explanation of a skipped step, and pauses the diagnosis in the steps that are timed."""

    def __init__(self, diagnosis):
        self._diagnosis = diagnosis
        self._place = FIRST  # of the current step in the cycle
        self._count = 0  # explanations that have become events

    @property
    def is_watching(self):
        """Whether the diagnosis slows the current step."""
        return self._place <= WATCHED

    def step_ended(self, next_step):
        """Pause or resume the diagnosis for the next step."""
        self._place = FIRST if next_step is None else (next_step + FIRST) % CYCLE
        self._diagnosis.is_paused = self._place >= WATCHED

    def new_events(self):
        """Return the events of explanations since the last call."""
        new = self._diagnosis.findings[self._count :]
        self._count += len(new)
        return [{"finding": text, "of_step": step} for step, text in new]


class MemoryEvents:
    """Makes events of measured memory: bytes by kind, and the formula's result."""

    is_watching = False  # measured steps are listed in the event of the measurement

    def __init__(self, meter):
        self._meter = meter
        self._last = None  # the last reading that has become an event

    def step_ended(self, next_step):
        """End the measurement of a step; begin that of ``next_step`` (None after the last) if it is to be measured."""
        if next_step is None:
            self._meter.closed(None)
        else:
            self._meter.begin_step(next_step)

    def new_events(self):
        """Return an event if there is a new reading."""
        meter = self._meter
        if meter.usage is self._last:
            return []
        self._last = meter.usage
        predicted = None if meter.predicted is None else meter.predicted.record()
        event = {"predicted": predicted, "measured": list(meter.measured), "notes": meter.explanations()}
        return [dict(event, memory=meter.usage.record())]


def add_observers(recorder, diagnose=True, memory=True, layers=False):
    """Return the observers of a recorded run, ``recorder`` among them, and add the others' events to its sources."""
    diagnoses = [OverflowDiagnosis(prints=False)] if diagnose else []
    meters = [MemoryObserver(MEASURED)] if memory else []
    compared = [LayerErrors()] if layers else []
    recorder.sources += [DiagnosisEvents(each) for each in diagnoses] + [MemoryEvents(each) for each in meters]
    recorder.sources += compared
    # The recorder is last: it may stop the run after a step, which the others must have observed by then.
    return compared + diagnoses + meters + [recorder]
