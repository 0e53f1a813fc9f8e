"""Adds an audit to a recorded run's events: ``RunOptions(watch="ampcompat.tools.audit.recorded_audit")``."""

from ...support.observer import Observer
from .audit import Audit


class AuditEvents(Audit, Observer):
    """An ``Audit`` whose last event has the key ``audit``: its report."""

    is_watching = False  # as a source of events of a ``Recorder``: all steps are timed

    def __init__(self):
        super().__init__()
        self._has_ended = self._is_told = False

    def step_ended(self, next_step):
        """End a step; None: the run has ended."""
        self._has_ended = next_step is None

    def new_events(self):
        """Return the event of the audit when the run has ended, once."""
        if not self._has_ended or self._is_told:
            return []
        self._is_told = True
        report = self.report()
        return [{"audit": report if report["steps"] else "it did not make a step"}]


def make(recorder, steps):
    """Return the observer of a run, a context manager."""
    return AuditEvents()
