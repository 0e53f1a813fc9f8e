"""Measures the memory of some steps of a session.

Owns: ``MemoryWatch``: which steps, and the greatest of what they held.
Must not touch: what a step is. Whoever records the run says when one begins.
The surprise: a measured step is slow, so that its seconds are worth nothing; ``measured`` says which those are.
"""

from ..errors import AmpError
from ..parts import footprint, memory_words
from ..parts.memory import MemoryMeter
from ..parts.memory_kinds import Reading
from .observers import Observer


class MemoryWatch(Observer):
    """An observer that measures a few steps. It stands before the recorder in the list of observers.

    Args:
        first: the steps to measure at the start, from 0; not 0 itself, in which models are wrapped and state appears.
        every: measure each step whose number is a multiple of this too, since memory may grow; None for never.

    Attributes:
        reading: the ``Reading`` of the step that held the most, with the ``most`` of each kind in any step; None before
            one was measured.
        measured: the numbers of the steps that were measured or are being measured.
        predicted: the ``Footprint`` of what was measured, or None where none could be made.
    """

    def __init__(self, first=(1, 2, 3), every=200):
        self.reading = None
        self.measured = []
        self.predicted = None
        self._session = None
        self._first = frozenset(first)
        self._every = every
        self._meter = MemoryMeter()

    def begin_step(self, step):
        """Hear that the step before ``step`` has ended, and that ``step`` begins now."""
        self._end()
        if step in self._first or (self._every and step and step % self._every == 0):
            self.measured.append(step)
            self._meter.begin()

    def _end(self):
        if not self._meter.is_open:
            return
        reading, before = self._meter.end(), self.reading or Reading()
        reading.most = reading.most.greatest(before.most)
        if before.at_peak.total > reading.at_peak.total:
            reading.at_peak = before.at_peak
        if before.fragmentation is not None:
            reading.fragmentation = max(reading.fragmentation or 0.0, before.fragmentation)
        self.reading = reading
        if self._session is not None and self.predicted is None:
            self._predict()

    def explanations(self):
        """Return sentences on what was measured and not predicted, and the other way round."""
        return [] if self.reading is None else memory_words.differences(self.reading, self.predicted)

    def _predict(self):
        """Make the prediction for what is there now."""
        models, optimizers = self._meter.watched()
        with self._session.process_casts.paused():
            try:
                self.predicted = footprint.existing(models, optimizers, self._session.policy)
            except AmpError:  # an optimizer that nobody can make again: what was measured stands alone
                self.predicted = None

    def initialized(self, session, models, optimizers):
        """Count what these hold."""
        self._session = session
        self._meter.watch(models, optimizers)

    def before_backward(self, backward):
        """Look: all activations are there."""
        self._meter.watch((), [adapter.optimizer for adapter in backward.adapters])
        self._look()

    def after_backward(self, backward):
        """Look: all gradients are there."""
        self._look()

    def _look(self):
        if self._meter.is_open:
            self._meter.moment()

    def before_step(self, adapter):
        """Look: gradients and masters are there."""
        if self._meter.is_open:
            self._meter.before_step()

    def after_step(self, adapter):
        """Look: state that was missing is there."""
        if self._meter.is_open:
            self._meter.after_step()

    def closed(self, session):
        """Keep what was measured of a step that has not ended."""
        self._end()
        self._session = None
