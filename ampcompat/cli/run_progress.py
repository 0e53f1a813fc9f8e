"""Show the progress of runs: a bar for each run on a terminal, otherwise a line from time to time.

The number of steps is unknown until a run has ended, unless ``--steps`` is given. Until then the bar is empty.
"""

import os
import sys
import threading
import time

from ..abtest.report.number_format import duration, number, scale
from ..support import terminal

#: Seconds between two updates of a bar, and between two lines if there is no terminal.
BAR_INTERVAL, LINE_INTERVAL = 0.1, 10.0

GREEN, RED, RESET = "\x1b[32m", "\x1b[31m", "\x1b[0m"


def make_progress(stream=None, steps=None, runs=1, kept=0):
    """Return a ``BarProgress`` if the stream is a terminal that can redraw a line, otherwise a ``LineProgress``."""
    stream = sys.stderr if stream is None else stream
    return (BarProgress if terminal.can_redraw(stream) else LineProgress)(stream, steps, runs, kept)


class Running:
    """A run in progress: its label, last step, losses and scale, and the times of its start and first step."""

    def __init__(self, label):
        self.label = label
        self.step, self.losses, self.scale = 0, {}, None
        self.is_said_to_start = False
        self.start = self.first_step = time.monotonic()

    def update(self, event):
        """Apply an event of a step."""
        if event["step"] == 0:
            self.first_step = time.monotonic()  # without the time for loading torch and data
        self.step = event["step"] + 1
        self.losses.update(event["loss"])
        self.scale = event["scale"][-1][1] if event["scale"] else self.scale

    def remaining(self, total, now):
        """Return the estimated seconds until the run has ended, or None."""
        known = total and self.step >= 2
        return (now - self.first_step) / (self.step - 1) * max(0, total - self.step) if known else None


class LineProgress:
    """Writes a line when a run ends, and one every ``LINE_INTERVAL`` seconds until then. Thread-safe.

    Args:
        stream: where to write.
        steps: the number of steps of each run, or None.
        runs: the number of runs of the whole series.
        kept: how many of them a resumed series already has.
    """

    interval = LINE_INTERVAL

    def __init__(self, stream, steps=None, runs=1, kept=0):
        self.stream = stream
        self.total = steps
        self.runs, self.begun = runs, kept
        self.running = {}  # label -> Running
        self._durations = []  # seconds of the runs that have ended
        self._shown = 0.0
        self._lock = threading.RLock()

    def begin_phase(self, runs, steps):
        """Go on to other runs, which are counted and timed anew."""
        with self._lock:
            self.runs, self.begun, self.total, self._durations = runs, 0, steps, []

    def begin(self, label):
        """Start a run."""
        with self._lock:
            self.begun += 1
            numbered = f"{label} (run {self.begun} of {self.runs})"
            self.running[label] = Running(numbered if self.begun <= self.runs > 1 else label)
            self._shown = time.monotonic()

    def update(self, label, event):
        """Update a run with an event of the event log, or with None to note that time has passed."""
        with self._lock:
            if event is not None and "step" in event:
                self.running[label].update(event)
            now = time.monotonic()
            if now - self._shown >= self.interval:
                self._shown = now
                self.show()

    def end(self, label, run):
        """End a run, given as a ``Run``."""
        with self._lock:
            ended = self.running.pop(label)
            self._durations.append(time.monotonic() - ended.start)
            if self.total is None and run.status in ("ok", "stopped"):
                self.total = len(run.step_seconds)
            self.show_end(ended.label, run, self._durations[-1])

    def remaining(self):
        """Return the estimated seconds until all runs have ended, or None."""
        now = time.monotonic()
        rests = [each.remaining(self.total, now) for each in self.running.values()]
        if None in rests or not rests:
            return None
        durations = self._durations + [now - each.start + rest for each, rest in zip(self.running.values(), rests)]
        waiting = sum(durations) / len(durations) * max(0, self.runs - self.begun)
        return max(max(rests), (sum(rests) + waiting) / len(rests))

    def heading(self):
        """Return the name of the run in progress, or how many of several have ended."""
        if len(self.running) == 1:
            return next(iter(self.running.values())).label
        return f"{self.begun - len(self.running)} of {self.runs} runs"

    def status(self):
        """Return the parts of the status line, the most important first."""
        remaining = self.remaining()
        of_all = " for all runs" if self.runs > 1 else ""
        eta = [f"ETA {duration(remaining)}{of_all}"] if remaining is not None else []
        if len(self.running) > 1:
            return eta + [f"{label} {self._steps(run)}" for label, run in self.running.items()]
        run = next(iter(self.running.values()))
        if not run.step:
            return ["starting"]
        values = ", ".join(number(run.losses[loss_id]) for loss_id in sorted(run.losses))
        loss = ["{} {}".format("losses" if len(run.losses) > 1 else "loss", values)] if values else []
        return [self._steps(run)] + loss + eta + (["scale " + scale(run.scale)] if run.scale is not None else [])

    def _steps(self, run):
        return f"{run.step}/{self.total}" if self.total else f"step {run.step}"

    def share(self):
        """Return the share of steps that are done, over all runs in progress."""
        steps = sum(run.step for run in self.running.values())
        return min(1.0, steps / self.total / len(self.running)) if self.total and self.running else 0.0

    def ending(self, run, seconds):
        """Return a description of how a run ended. Its final loss is in the report, where levels are compared."""
        steps = f"{len(run.step_seconds)} steps"
        if run.error and run.status != "interrupted":
            return f"{run.status} after {steps}: {run.error}"
        return "{}{} in {}".format(
            "interrupted after " if run.status == "interrupted" else "", steps, duration(seconds)
        )

    def show(self):
        """Write a line; the line that a run is starting is written only once."""
        if len(self.running) == 1:
            run = next(iter(self.running.values()))
            if not run.step and run.is_said_to_start:
                return
            run.is_said_to_start = True
        print("{}: {}".format(self.heading(), ", ".join(self.status())), file=self.stream, flush=True)

    def show_end(self, label, run, seconds):
        """Write the last line of a run, which took so many seconds."""
        print(f"{label}: {self.ending(run, seconds)}", file=self.stream, flush=True)


class BarProgress(LineProgress):
    """Redraws one line with a bar."""

    interval = BAR_INTERVAL

    def __init__(self, stream, steps=None, runs=1, kept=0):
        super().__init__(stream, steps, runs, kept)
        self._colours = "NO_COLOR" not in os.environ
        self._symbols = "█░" if _can_write("█░", stream) else "#."

    def show(self):
        """Redraw the line."""
        self._draw(self.heading(), self.status(), self.share(), None)

    def show_end(self, label, run, seconds):
        """Draw the line of a run for the last time and keep it."""
        share = min(1.0, len(run.step_seconds) / self.total) if self.total else 0.0
        self._draw(label, [self.ending(run, seconds)], share, RED if run.error else GREEN)
        self.stream.write("\n")
        self.stream.flush()

    def _draw(self, label, parts, share, colour):
        columns = terminal.columns(80) - 1
        width = columns - len(label) - 1
        length = min(30, max(0, width - 30))
        filled = int(round(share * length))
        bar = self._symbols[0] * filled + self._symbols[1] * (length - filled)
        text = _join(parts, width - length - 1)
        if colour is not None and self._colours:
            bar = colour + bar + RESET
        self.stream.write("\r\x1b[K" + " ".join(part for part in (label, bar, text) if part))
        self.stream.flush()


def _join(parts, width):
    """Return as many of the parts as fit, and at least the beginning of the first one."""
    text = parts[0]
    for part in parts[1:]:
        if len(text) + 2 + len(part) > width:
            break
        text += "  " + part
    return text[: max(0, width)]


def _can_write(text, stream):
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
