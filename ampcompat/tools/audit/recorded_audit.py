"""Adds an audit to a recorded run's events: ``RunOptions(watch="ampcompat.tools.audit.recorded_audit")``."""

from ...abtest.recording.event_sources import FinalEvent
from .audit import Audit


class AuditEvent(Audit, FinalEvent):
    """An ``Audit`` whose event has its report."""

    key = "audit"

    def found(self):
        """Return the report when the run has ended, or why there is none."""
        report = self.report()
        return report if report["steps"] else "it did not make a step"


def make(recorder, steps):
    """Return the observer of a run, a context manager."""
    return AuditEvent()
