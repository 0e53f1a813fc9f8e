"""The other observers of a recorded run, overflow diagnosis and memory measurement, and events from their results."""

from ...trace.memory.memory_observer import MemoryObserver
from ...trace.skipped_steps.diagnosis import OverflowDiagnosis

#: Of every twenty steps, ten have hooks for overflows: the steps 0 to 5, 16 to 25, 36 to 45, … The others have no
#: hooks, so their times are those of the script (see ``summary.steady_steps``).
CYCLE, WATCHED, FIRST = 20, 10, 4

#: Steps in which memory is measured, in addition to every 200th: steps with hooks. Not the first, and some after the
#: initial skips of a dynamic scale, since an optimizer has no state before its first step.
MEASURED = (1, 2, 5, 20, 60, 100)


class DiagnosisEvents:
    """Turns the results of the diagnosis into events, and pauses the diagnosis in the steps that are timed.

    One event for each explanation of a skipped step, and for each warning about a value that grows.
    """

    def __init__(self, diagnosis):
        self._diagnosis = diagnosis
        self._count = self._warnings = 0  # explanations, and warnings, that have become events

    @property
    def is_watching(self):
        """Whether the diagnosis slows down the current step."""
        return not self._diagnosis.is_paused

    def step_ended(self, next_step):
        """Pause the diagnosis for the next steps, or resume it: in turns, and after an unwatched step was skipped."""
        place = 0 if next_step is None else (next_step + FIRST) % CYCLE
        if place == WATCHED:
            self._diagnosis.is_paused = True
        elif place < WATCHED or len(self._diagnosis.findings) > self._count:
            self._diagnosis.is_paused = False

    def new_events(self):
        """Return the events of explanations and warnings since the last call."""
        new, warned = self._diagnosis.findings[self._count :], self._diagnosis.warnings[self._warnings :]
        self._count += len(new)
        self._warnings += len(warned)
        events = [{"warning": text, "of_step": step} for step, text in warned]
        return events + [{"finding": text, "of_step": step, "same_as": same_as} for step, text, same_as in new]


class MemoryEvents:
    """Makes events of measured memory: bytes by kind."""

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
        return [{"memory": meter.usage.record(), "measured": list(meter.measured), "notes": meter.notes()}]


def add_observers(recorder, diagnose=True, memory=True):
    """Return the observers of a recorded run, including ``recorder``, and add the others' events to its sources."""
    diagnoses = [OverflowDiagnosis(prints=False)] if diagnose else []
    meters = [MemoryObserver(MEASURED)] if memory else []
    recorder.sources += [DiagnosisEvents(each) for each in diagnoses] + [MemoryEvents(each) for each in meters]
    # The recorder is last: it may stop the run after a step, which the others must observe first.
    return diagnoses + meters + [recorder]
