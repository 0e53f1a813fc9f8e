"""The events of a recorded run, one JSON object per line of a file, so that a killed run keeps what was measured.

Events are dicts with one of these keys, and the values that belong to it:

    environment   {…}: versions, platform and device of the run
    backend       what casts functions, or None
    step          its number; loss and scale: [[loss_id, value], …]; skipped; seconds; samples or None; watched;
                  metrics: [[name, value], …]; data: checksums of what was loaded and of inputs, or None
    memory        {kind: bytes}, as far as measured by now; measured: in which steps; notes: sentences on it
    finding       why a step was skipped; of_step; same_as: an earlier step with the same cause, or None
    saved         a file that the script has saved by torch.save after the first step
    end           status; error, traceback

and what an additional ``FinalEvent`` has found.
"""

import json

from ..packed_numbers import Rows
from ..report_data import Finding, Memory


def apply_event(run, event):
    """Update a ``Run`` with one event; an event without one of the keys above is ignored."""
    if "step" in event:
        _apply_step(run, event)
    elif "backend" in event:
        run.backend = event["backend"]
    elif "memory" in event:
        run.memory = Memory(**event["memory"])
        run.measured, run.memory_notes = list(event["measured"]), list(event["notes"])
    elif "finding" in event:
        run.findings.append(Finding(event["of_step"], event["finding"], event.get("same_as")))
    elif "saved" in event:
        run.checkpoints.append(event["saved"])
    elif "end" in event:
        run.status, run.error, run.traceback = event["end"], event.get("error"), event.get("traceback")


def _apply_step(run, event):
    step = event["step"]
    for loss_id, value in event["loss"]:
        run.loss.append((step, loss_id, value))
    for loss_id, value in event["scale"]:
        run.scale.append((step, loss_id, value))
    if event["skipped"]:
        run.skipped.append(step)
    if event.get("watched"):
        run.watched.append(step)
    for name, value in event.get("metrics", ()):
        run.metrics.setdefault(name, Rows("id")).append((step, value))
    if event.get("data"):
        run.loaded.append(event["data"][0])
        run.inputs.append(event["data"][1])
    run.step_seconds.append(event["seconds"])
    if event["samples"] is None:  # one step with an unknown number of samples makes the rate unknown
        run.samples = None
    elif step == 0:
        run.samples = [event["samples"]]
    elif run.samples is not None:
        run.samples.append(event["samples"])


def write_event(file, event):
    """Append one event to an open file, and flush it."""
    file.write(json.dumps(event) + "\n")
    file.flush()


class EventReader:
    """Reads a file of events while another process is writing it."""

    def __init__(self, path):
        self._path = path
        self._position = 0
        self._incomplete = ""  # the last line, as far as it has been written

    def new_events(self):
        """Return the events that were written since the last call."""
        try:
            with open(self._path, encoding="utf-8", newline="\n") as file:
                file.seek(self._position)
                text = file.read()
                self._position = file.tell()
        except FileNotFoundError:  # the child process has not opened it yet
            return []
        lines = (self._incomplete + text).split("\n")
        self._incomplete = lines.pop()
        return [json.loads(line) for line in lines]
