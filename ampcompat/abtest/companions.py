"""Who else listens to a recorded run: the forensics of skipped steps, the meter of memory.

Owns: ``listeners``, and how what the others find becomes events of the journal.
Must not touch: what they find.
The surprise: the recorder comes last among the listeners. It may end the run after a step, and by then the others
have heard of that step too.
"""

from ..runtime.forensics import Forensics
from ..runtime.memory_watch import MemoryWatch

#: Steps in which memory is measured, besides every 200th. Not the first, and some after the skips that a dynamic
#: scale may begin with, since an optimizer has no state before it has stepped.
MEASURED = (1, 2, 5, 10, 20, 50, 100)


class Findings:
    """Turns what a ``Forensics`` has found into events, each once."""

    def __init__(self, forensics):
        self._forensics = forensics
        self._told = 0

    def step_ended(self, following):
        """Hear that a step has ended, and the number of the one that follows; None if none does."""

    def new_events(self):
        """Return the events of what was found since the last time."""
        new = self._forensics.findings[self._told :]
        self._told += len(new)
        return [{"finding": text, "of_step": step} for step, text in new]


class Bytes:
    """Turns what a ``MemoryWatch`` has measured into events: bytes by kind, and the formula's answer."""

    def __init__(self, watch):
        self._watch = watch
        self._told = None

    def step_ended(self, following):
        """Let the watch keep what it has measured, and begin anew if the following step is one to be measured."""
        if following is None:
            self._watch.closed(None)
        else:
            self._watch.begin_step(following)

    def new_events(self):
        """Return an event if there is a new reading."""
        watch = self._watch
        if watch.reading is self._told:
            return []
        self._told = watch.reading
        predicted = None if watch.predicted is None else watch.predicted.record()
        told = {"predicted": predicted, "measured": list(watch.measured), "notes": watch.explanations()}
        return [dict(told, memory=watch.reading.record())]


def listeners(recorder, diagnoses=True, measures_memory=True):
    """Return the observers of a recorded run; ``recorder`` is told what the others find."""
    forensics = [Forensics(says=False)] if diagnoses else []
    watches = [MemoryWatch(MEASURED)] if measures_memory else []
    recorder.sources += [Findings(each) for each in forensics] + [Bytes(each) for each in watches]
    return forensics + watches + [recorder]
