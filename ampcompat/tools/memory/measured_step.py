"""Measure one training step of models and optimizers, with or without amp."""

import functools
from types import MethodType

from ...engine.patched_optimizers.optimizer_record import record_of
from ...support.patching import PatchStack
from .memory_observer import MemoryObserver

#: The number of iterations that may be skipped before the measured one: a dynamic loss scale starts high.
MAX_SKIPPED = 10


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
    observer.initialized(None, models, optimizers)  # no session: the caller predicts
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
