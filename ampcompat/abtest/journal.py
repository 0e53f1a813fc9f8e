"""What happens in a run, one event per line, so that a crash or Ctrl-C keeps what was measured.

Owns: ``take_in``, what each event does to a ``Run``; the file in which a child process tells its parent.
Must not touch: torch. The parent of an A/B run has none loaded.
The surprise: a line that a killed process left half written is simply not there yet.

Events are dicts with one of these keys, and what belongs to it:

    environment   {…}: where the run trains
    backend       who casts functions, or None
    step          its number; loss and scale: [[loss_id, value], …]; skipped; seconds; samples or None
    memory        {kind: bytes}, as far as measured by now; predicted: the formula's answer; notes: why they differ;
                  measured: in which steps
    finding       what the forensics say; of_step
    end           status; error, traceback
"""

import json

from .records import Finding, Memory


def take_in(run, event):
    """Let one event happen to a ``Run``; events of no concern to it are left out."""
    if "step" in event:
        _take_in_step(run, event)
    elif "backend" in event:
        run.backend = event["backend"]
    elif "memory" in event:
        run.memory = Memory(**event["memory"])
        run.predicted = Memory(**event["predicted"]) if event.get("predicted") else None
        run.measured, run.memory_notes = list(event["measured"]), list(event["notes"])
    elif "finding" in event:
        run.findings.append(Finding(event["of_step"], event["finding"]))
    elif "end" in event:
        run.status, run.error, run.traceback = event["end"], event.get("error"), event.get("traceback")


def _take_in_step(run, event):
    step = event["step"]
    run.loss += [(step, loss_id, value) for loss_id, value in event["loss"]]
    run.scale += [(step, loss_id, value) for loss_id, value in event["scale"]]
    run.skipped += [step] if event["skipped"] else []
    run.step_seconds.append(event["seconds"])
    if step == 0:
        run.samples = []
    if run.samples is not None:  # one step of unknown size makes the rate unknown
        run.samples = None if event["samples"] is None else run.samples + [event["samples"]]


class Writer:
    """Writes events to a file, each at once."""

    def __init__(self, path):
        self._file = open(path, "w", encoding="utf-8")

    def write(self, event):
        """Add one event."""
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self):
        """Write no more."""
        self._file.close()


class Reader:
    """Follows a file of events while it grows."""

    def __init__(self, path):
        self._path = path
        self._position = 0
        self._rest = ""

    def new_events(self):
        """Return the events that were written since the last time."""
        try:
            with open(self._path, encoding="utf-8", newline="\n") as file:
                file.seek(self._position)
                text = file.read()
                self._position = file.tell()
        except FileNotFoundError:  # the child has not come that far
            return []
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        return [json.loads(line) for line in lines]
