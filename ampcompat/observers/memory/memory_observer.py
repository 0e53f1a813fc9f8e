"""Measure the memory of some steps of a session, or of one step with or without amp."""

import functools
from types import MethodType

from ...engine.optimizers.optimizer_record import record_of
from ...support.observer_interface import Observer
from ...support.patching import PatchStack
from .memory_report import MemoryUsage, notes_on
from .meter import MemoryMeter

#: The number of iterations that may be skipped before the measured one: a dynamic loss scale starts high.
MAX_SKIPPED = 10


class SamplingObserver(Observer):
    """Samples the memory where it may be largest in a step; subclasses choose the steps to measure."""

    def __init__(self):
        self._meter = MemoryMeter()

    def initialized(self, session, models, optimizers):
        """Count these models and optimizers."""
        self._meter.track(models, optimizers)

    def before_backward(self, backward):
        """Sample: all activations exist."""
        self._meter.sample()

    def after_backward(self, backward):
        """Sample: all gradients exist."""
        self._meter.sample()

    def before_step(self, record):
        """Sample: gradients and masters exist."""
        self._meter.before_step()

    def after_step(self, record):
        """Sample: optimizer state exists."""
        self._meter.after_step()


class MemoryObserver(SamplingObserver):
    """An observer that measures some steps. A measured step is slow, so its time must not be used.

    It must come before the recorder in the list of observers: the recorder may raise at the end of a step.

    Args:
        first: the steps to measure at the start, from 0; without 0 itself, in which models are wrapped and optimizer
            state appears.
        every: also measure each step whose number is a multiple of this, since memory may grow; None disables this.

    Attributes:
        usage: the ``MemoryUsage`` of the step with the most memory, with the ``peak_by_kind`` of all measured steps;
            None before the first.
        measured: the numbers of the measured steps, including the current one.
    """

    def __init__(self, first=(1, 2, 3), every=200):
        super().__init__()
        self.usage = None
        self.measured = []
        self._first = frozenset(first)
        self._every = every

    def begin_step(self, step):
        """End the previous step and begin ``step``. Called by the code that counts steps."""
        self._end_step()
        if step in self._first or (self._every and step and step % self._every == 0):
            self.measured.append(step)
            self._meter.start()

    def _end_step(self):
        if not self._meter.is_measuring:
            return
        usage, before = self._meter.stop(), self.usage or MemoryUsage()
        usage.peak_by_kind = usage.peak_by_kind.maximum(before.peak_by_kind)
        if before.at_peak.total > usage.at_peak.total:
            usage.at_peak = before.at_peak
        if before.fragmentation is not None:
            usage.fragmentation = max(usage.fragmentation or 0.0, before.fragmentation)
        self.usage = usage

    def notes(self):
        """Return sentences on the measurement."""
        return [] if self.usage is None else notes_on(self.usage)

    def before_backward(self, backward):
        """Sample: all activations exist. Also count optimizers that were not passed to ``initialize``."""
        self._meter.track((), [record.optimizer for record in backward.records])
        super().before_backward(backward)

    def closed(self, session):
        """Keep the measurement of a step that has not ended."""
        self._end_step()


def measured_step(session, models, optimizers, step):
    """Return the ``MemoryUsage`` of one call of ``step``, made after a first call that was not skipped by an overflow.

    Args:
        session: the session in which the optimizers are initialized, or None.
        models, optimizers: lists.
        step: a function of no arguments that does one iteration.
    """
    for _ in range(MAX_SKIPPED):
        step()
        if not was_skipped(optimizers):
            break
    observer = MemoryObserver(first=(0,), every=None)
    observer.initialized(session, models, optimizers)
    with PatchStack() as patches:
        if session is not None:
            session.observers.append(observer)
            patches.defer(session.observers.remove, observer)
        for each in optimizers:
            if record_of(each) is None:
                patches.set(each, "step", MethodType(_observed(each.step, observer), each))
        observer.begin_step(0)
        try:
            step()
        finally:
            observer.closed(session)
    return observer.usage


def was_skipped(optimizers):
    """Return whether the last step of any of the optimizers was skipped because of an overflow."""
    return any(record.skips.was_last_skipped() for record in map(record_of, optimizers) if record is not None)


def _observed(step, observer):
    """Return the ``step`` of an optimizer that is not initialized, wrapped to call the observer."""

    @functools.wraps(step)
    def observed(self, *args, **kwargs):
        observer.before_step(None)
        try:
            return step(*args, **kwargs)
        finally:
            observer.after_step(None)

    return observed
