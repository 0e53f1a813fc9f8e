"""Adds an audit to a recorded run's events: ``RunOptions(watch="ampcompat.tools.audit.recorded_audit")``."""

from ...abtest.recording.event_sources import FinalEvent
from ...errors import AmpError
from .audit import Audit


class AuditEvent(Audit, FinalEvent):
    """An ``Audit`` whose event has its report."""

    key = "audit"

    def found(self):
        """Return the report when the run has ended."""
        report = self.report()
        if not report["steps"]:
            raise AmpError("it did not make a step")
        return report


def make(recorder, steps):
    """Return the observer of a run, a context manager."""
    return AuditEvent()
