"""Who else listens to a recorded run: the forensics of skipped steps.

Owns: ``listeners``, and how what they find becomes events of the journal.
Must not touch: what they find.
The surprise: the recorder comes last among the listeners. It may end the run after a step, and by then the others have heard
of that step too.
"""

from ..runtime.forensics import Forensics


class Findings:
    """Turns what a ``Forensics`` has found into events, each once."""

    def __init__(self, forensics):
        self._forensics = forensics
        self._told = 0

    def new_events(self):
        """Return the events of what was found since the last time."""
        new = self._forensics.findings[self._told :]
        self._told += len(new)
        return [{"finding": text, "of_step": step} for step, text in new]


def listeners(recorder, diagnoses=True):
    """Return the observers of a recorded run; ``recorder`` is told what the others find."""
    forensics = [Forensics(says=False)] if diagnoses else []
    recorder.sources += [Findings(each) for each in forensics]
    return forensics + [recorder]
