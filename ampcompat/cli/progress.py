"""Shows the progress of runs: a bar for each run on a terminal, a line from time to time elsewhere.

The number of steps is unknown until a run has ended, unless ``--steps`` is given. Until then the bar is empty.
"""

import os
import shutil
import sys
import time

from ..abtest.number_format import duration, number, scale

#: Seconds between two updates of a bar, and between two lines where there is no terminal.
BAR_INTERVAL, LINE_INTERVAL = 0.1, 10.0

GREEN, RED, RESET = "\x1b[32m", "\x1b[31m", "\x1b[0m"


def make_progress(stream=None, steps=None, runs=1):
    """Return a ``BarProgress`` if the stream is a terminal that can redraw a line, else a ``LineProgress``."""
    stream = sys.stderr if stream is None else stream
    can_redraw = stream.isatty() and os.environ.get("TERM") != "dumb"
    return (BarProgress if can_redraw else LineProgress)(stream, steps, runs)


class LineProgress:
    """Writes a line when a run ends, and one every ``LINE_INTERVAL`` seconds before.

    Args:
        stream: where to write.
        steps: the number of steps of each run, or None.
        runs: the number of runs.
    """

    interval = LINE_INTERVAL

    def __init__(self, stream, steps=None, runs=1):
        self.stream = stream
        self.total = steps
        self.runs, self.run = runs, 0
        self._durations = []  # seconds of the runs that have ended
        self.label, self.step, self.loss, self.scale = "", 0, None, None
        self._start = self._begin = self._shown = 0.0

    def begin(self, label):
        """Start a run."""
        self.run += 1
        self.label = "{} (run {} of {})".format(label, self.run, self.runs) if self.run <= self.runs > 1 else label
        self.step, self.loss, self.scale = 0, None, None
        self._start = self._begin = self._shown = time.monotonic()

    def update(self, event):
        """Update with an event of the event log, or with None because time has passed."""
        if event is not None and "step" in event:
            if event["step"] == 0:
                self._begin = time.monotonic()  # without the time for loading torch and data
            self.step = event["step"] + 1
            self.loss = event["loss"][-1][1] if event["loss"] else self.loss
            self.scale = event["scale"][-1][1] if event["scale"] else self.scale
        now = time.monotonic()
        if now - self._shown >= self.interval:
            self._shown = now
            self.show()

    def end(self, run):
        """End a run, given as a ``Run``."""
        self._durations.append(time.monotonic() - self._start)
        if self.total is None and run.status in ("ok", "stopped"):
            self.total = len(run.step_seconds)
        self.show_end(run)

    def remaining(self):
        """Return the estimated seconds until all runs have ended, or None."""
        if not self.total or self.step < 2:
            return None
        now = time.monotonic()
        rest = (now - self._begin) / (self.step - 1) * max(0, self.total - self.step)
        durations = self._durations + [now - self._start + rest]
        return rest + sum(durations) / len(durations) * max(0, self.runs - self.run)

    def status(self):
        """Return the parts of the status line, the most important first."""
        if not self.step:
            return ["starting"]
        parts = ["step {}".format(self.step) if not self.total else "{}/{}".format(self.step, self.total)]
        parts += ["loss " + number(self.loss)] if self.loss is not None else []
        remaining = self.remaining()
        parts += ["ETA " + duration(remaining)] if remaining is not None else []
        return parts + (["scale " + scale(self.scale)] if self.scale is not None else [])

    def ending(self, run):
        """Return a description of how a run ended."""
        if run.error and run.status != "interrupted":
            return "{} after {} steps: {}".format(run.status, len(run.step_seconds), run.error)
        text = "interrupted after " if run.status == "interrupted" else ""
        text += "{} steps".format(len(run.step_seconds))
        return text + (", last loss " + number(run.loss[-1][2]) if run.loss else "")

    def show(self):
        """Write a line."""
        print("{}: {}".format(self.label, ", ".join(self.status())), file=self.stream, flush=True)

    def show_end(self, run):
        """Write the last line of a run."""
        print("{}: {}".format(self.label, self.ending(run)), file=self.stream, flush=True)


class BarProgress(LineProgress):
    """Redraws one line with a bar."""

    interval = BAR_INTERVAL

    def __init__(self, stream, steps=None, runs=1):
        super().__init__(stream, steps, runs)
        self._colours = "NO_COLOR" not in os.environ
        self._symbols = "█░" if _can_write("█░", stream) else "#."

    def show(self):
        """Redraw the line."""
        share = min(1.0, self.step / self.total) if self.total else 0.0
        self._draw(self.status(), share, None)

    def show_end(self, run):
        """Draw the line for the last time and leave it there."""
        share = min(1.0, len(run.step_seconds) / self.total) if self.total else 0.0
        self._draw([self.ending(run)], share, RED if run.error else GREEN)
        self.stream.write("\n")
        self.stream.flush()

    def _draw(self, parts, share, colour):
        columns = shutil.get_terminal_size().columns - 1
        width = columns - len(self.label) - 1
        length = min(30, max(0, width - 30))
        filled = int(round(share * length))
        bar = self._symbols[0] * filled + self._symbols[1] * (length - filled)
        text = _join(parts, width - length - 1)
        if colour is not None and self._colours:
            bar = colour + bar + RESET
        self.stream.write("\r\x1b[K" + " ".join(part for part in (self.label, bar, text) if part))
        self.stream.flush()


def _join(parts, width):
    """Return as many of the parts as fit; of the first one at least the beginning."""
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
