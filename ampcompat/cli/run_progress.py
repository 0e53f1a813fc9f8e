"""Show the progress of runs: on a terminal one line that is redrawn, otherwise a line from time to time.

The number of steps is unknown until a run has ended, unless ``--steps`` is given.
"""

import sys
import time

from ..abtest.number_format import duration, number, scale
from ..support import terminal

#: Seconds between two updates of a line that is redrawn, and between two lines elsewhere.
REDRAW_INTERVAL, LINE_INTERVAL = 0.1, 10.0

#: The number of the latest backward passes whose losses are shown.
LATEST = 64


class Progress:
    """Writes a line when a run ends, and the status of the run in progress, ``run`` with its ``label``, until then.

    Args:
        stream: where to write; None: stderr.
        steps: the number of steps of each run, or None.
        runs: the number of runs of the whole series.
        kept: how many of them a resumed series already has.
    """

    def __init__(self, stream=None, steps=None, runs=1, kept=0):
        self.stream = sys.stderr if stream is None else stream
        self.redraws = terminal.can_redraw(self.stream)
        self.interval = REDRAW_INTERVAL if self.redraws else LINE_INTERVAL
        self.total = steps
        self.runs, self.begun = runs, kept
        self.label = self.run = None
        self._durations = []  # seconds of the runs that have ended
        self._shown = 0.0

    def begin_phase(self, runs, steps):
        """Go on to other runs, which are counted and timed anew."""
        self.runs, self.begun, self.total, self._durations = runs, 0, steps, []

    def begin(self, label, run):
        """Start a run, given as the ``Run`` to which its events are applied."""
        self.begun += 1
        numbered = f"{label} (run {self.begun} of {self.runs})"
        self.label, self.run = numbered if self.begun <= self.runs > 1 else label, run
        self._shown = self._start = time.monotonic()
        self._first_step, self._is_said_to_start = None, False  # the time of its first step

    @property
    def step(self):
        """The number of steps of the run so far."""
        return len(self.run.step_seconds)

    def update(self):
        """Show the status if it is due: the run has grown, or time has passed."""
        now = time.monotonic()
        if self._first_step is None and self.step:
            self._first_step = now
        if now - self._shown >= self.interval:
            self._shown = now
            self.show()

    def end(self):
        """End the run."""
        seconds = time.monotonic() - self._start
        self._durations.append(seconds)
        if self.total is None and self.run.status in ("ok", "stopped"):
            self.total = self.step
        start = "\r\x1b[K" if self.redraws else ""
        print(f"{start}{self.label}: {self._ending(seconds)}", file=self.stream, flush=True)

    def _ending(self, seconds):
        """Return how the run ended. Its final loss is in the report, where levels are compared."""
        run, steps = self.run, f"{self.step} steps"
        if run.error and run.status != "interrupted":
            return f"{run.status} after {steps}: {run.error}"
        return "{}{} in {}".format(
            "interrupted after " if run.status == "interrupted" else "", steps, duration(seconds)
        )

    def remaining(self):
        """Return the estimated seconds until all runs have ended, or None. Loading is not counted as a step."""
        if not self.total or self.step < 2 or self._first_step is None:
            return None
        now = time.monotonic()
        rest = (now - self._first_step) / (self.step - 1) * max(0, self.total - self.step)
        durations = self._durations + [now - self._start + rest]
        return rest + sum(durations) / len(durations) * max(0, self.runs - self.begun)

    def status(self):
        """Return the parts of the status line, the most important first."""
        remaining, run = self.remaining(), self.run
        of_all = " for all runs" if self.runs > 1 else ""
        eta = [f"ETA {duration(remaining)}{of_all}"] if remaining is not None else []
        if not self.step:
            return ["starting"]
        losses = {loss_id: value for _, loss_id, value in run.loss[-LATEST:]}
        values = ", ".join(number(losses[loss_id]) for loss_id in sorted(losses))
        loss = ["{} {}".format("losses" if len(losses) > 1 else "loss", values)] if values else []
        scales = [f"scale {scale(value)}" for _, _, value in run.scale[-1:]]
        steps = f"{self.step}/{self.total}" if self.total else f"step {self.step}"
        return [steps] + loss + eta + scales

    def show(self):
        """Write the status; elsewhere than on a terminal, that a run is starting is written only once."""
        if not self.redraws:
            if not self.step and self._is_said_to_start:
                return
            self._is_said_to_start = True
        first, *others = self.status()
        text, width = f"{self.label}: {first}", terminal.columns(80) - 1
        for part in others:
            if self.redraws and len(text) + 2 + len(part) > width:
                break
            text += ", " + part
        if self.redraws:
            print("\r\x1b[K" + text[:width], end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)
