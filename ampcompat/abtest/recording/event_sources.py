"""Observers of a recorded run that make events: the diagnosis of overflows, the measurement of memory, and others."""

from ...errors import AmpError
from ...observers.memory.memory_observer import MemoryObserver
from ...observers.skipped_steps.diagnosis import OverflowDiagnosis
from ...support.observer_interface import Observer

#: Of every twenty steps, ten have hooks for overflows: the steps 0 to 5, 16 to 25, 36 to 45, … The others have no
#: hooks, so their times are those of the script (see ``summary.steady_steps``).
CYCLE, WATCHED, FIRST = 20, 10, 4

#: Steps in which memory is measured, in addition to every 200th: steps with hooks. Not the first, and some after the
#: initial skips of a dynamic scale, since an optimizer has no state before its first step.
MEASURED = (1, 2, 5, 20, 60, 100)


class EventSource(Observer):
    """An observer that makes events of what it finds.

    Attributes:
        is_watching: whether it slows down the current step, whose time then does not count.
    """

    is_watching = False

    def step_ended(self, next_step):
        """Go on to the next step, of this number; None: the run has ended."""

    def new_events(self):
        """Return the events since the last call."""
        return []


class FinalEvent(EventSource):
    """Makes one event, when the run has ended: ``{key: what found() returns}``. Subclasses define these two.

    If ``found()`` raises an ``AmpError``, the event is ``{"missing": its message}``: the run has its own end.
    """

    _has_ended = _is_told = False

    def step_ended(self, next_step):
        self._has_ended = next_step is None

    def new_events(self):
        if not self._has_ended or self._is_told:
            return []
        self._is_told = True
        try:
            return [{self.key: self.found()}]
        except AmpError as error:
            return [{"missing": str(error)}]


class DiagnosisEvents(OverflowDiagnosis, EventSource):
    """Makes an event of each explanation of a skipped step, and is paused in the steps that are timed."""

    def __init__(self):
        super().__init__(prints=False)
        self._explained = 0  # explanations that have become events

    @property
    def is_watching(self):
        """Whether the diagnosis slows down the current step."""
        return not self.is_paused

    def step_ended(self, next_step):
        """Pause for the next steps, or resume: in turns, and after an unwatched step was skipped."""
        place = 0 if next_step is None else (next_step + FIRST) % CYCLE
        if place == WATCHED:
            self.is_paused = True
        elif place < WATCHED or len(self.findings) > self._explained:
            self.is_paused = False

    def new_events(self):
        """Return the events of explanations since the last call."""
        new = self.findings[self._explained :]
        self._explained += len(new)
        return [{"finding": text, "of_step": step, "same_as": same_as} for step, text, same_as in new]


class MemoryEvents(MemoryObserver, EventSource):
    """Makes events of measured memory: bytes by kind. The event lists the measured steps."""

    def __init__(self):
        super().__init__(MEASURED)
        self._last = None  # the last reading that has become an event

    def step_ended(self, next_step):
        """End the measurement of a step; begin that of ``next_step`` (None after the last) if it is to be measured."""
        if next_step is None:
            self.closed(None)
        else:
            self.begin_step(next_step)

    def new_events(self):
        """Return an event if there is a new reading."""
        if self.usage is self._last:
            return []
        self._last = self.usage
        return [{"memory": self.usage.record(), "measured": list(self.measured), "notes": self.notes()}]
