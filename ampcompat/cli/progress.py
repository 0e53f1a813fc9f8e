"""What is seen of runs while they last: a bar each on a terminal, a line now and then elsewhere.

Owns: the lines on stderr; colours.
Must not touch: runs and reports; it is told events.
The surprise: how many steps a run will take is unknown until one has ended, unless ``--steps`` says so. Until then
there is a count instead of a bar.
"""

import os
import shutil
import sys
import time

from ..abtest.words import duration, number, scale

#: Seconds between two looks of a bar, and between two lines where there is no terminal.
REDRAW, LINE = 0.1, 10.0

GREEN, RED, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


def make_progress(stream=None, steps=None):
    """Return bars where the stream is a terminal that can redraw a line, else plain lines."""
    stream = sys.stderr if stream is None else stream
    can_redraw = stream.isatty() and os.environ.get("TERM") != "dumb"
    return (Bars if can_redraw else Lines)(stream, steps)


class Progress:
    """Follows one run after the other.

    Args:
        stream: where to write.
        steps: how many each run will take, or None.
    """

    interval = LINE

    def __init__(self, stream, steps=None):
        self.stream = stream
        self.total = steps
        self.label, self.step, self.loss, self.scale = "", 0, None, None
        self._begin = self._shown = 0.0

    def begin(self, label):
        """Hear that a run starts."""
        self.label, self.step, self.loss, self.scale = label, 0, None, None
        self._begin = self._shown = time.monotonic()

    def hear(self, event):
        """Take in an event of the journal, or None: time passes."""
        if event is not None and "step" in event:
            if event["step"] == 0:
                self._begin = time.monotonic()  # loading torch and data says nothing of the steps to come
            self.step = event["step"] + 1
            self.loss = event["loss"][-1][1] if event["loss"] else self.loss
            self.scale = event["scale"][-1][1] if event["scale"] else self.scale
        now = time.monotonic()
        if now - self._shown >= self.interval:
            self._shown = now
            self.show()

    def end(self, run):
        """Hear that the run has ended, as a ``Run``."""
        if self.total is None and run.status in ("ok", "stopped"):
            self.total = len(run.step_seconds)
        self.show_end(run)

    def remaining(self):
        """Return the seconds to go, or None."""
        if not self.total or self.step < 2:
            return None
        return (time.monotonic() - self._begin) / (self.step - 1) * max(0, self.total - self.step)

    def pieces(self):
        """Return what is to be said, the most important first."""
        if not self.step:
            return ["starting"]
        told = ["step {}".format(self.step) if not self.total else "{}/{}".format(self.step, self.total)]
        told += ["loss " + number(self.loss)] if self.loss is not None else []
        remaining = self.remaining()
        told += ["ETA " + duration(remaining)] if remaining is not None else []
        return told + (["scale " + scale(self.scale)] if self.scale is not None else [])

    def ending(self, run):
        """Return how a run ended, in words."""
        if run.error and run.status != "interrupted":
            return "{} after {} steps: {}".format(run.status, len(run.step_seconds), run.error)
        told = "interrupted after " if run.status == "interrupted" else ""
        told += "{} steps".format(len(run.step_seconds))
        return told + (", last loss " + number(run.loss[-1][2]) if run.loss else "")

    def show(self):
        """Show how far the run is."""
        raise NotImplementedError

    def show_end(self, run):
        """Show how the run ended."""
        raise NotImplementedError


class Lines(Progress):
    """Writes a line when a run ends, and one now and then before."""

    def show(self):
        """Write a line."""
        print("{}: {}".format(self.label, ", ".join(self.pieces())), file=self.stream, flush=True)

    def show_end(self, run):
        """Write the last line of a run."""
        print("{}: {}".format(self.label, self.ending(run)), file=self.stream, flush=True)


class Bars(Progress):
    """Draws one line over and over."""

    interval = REDRAW

    def __init__(self, stream, steps=None):
        super().__init__(stream, steps)
        self._colours = "NO_COLOR" not in os.environ
        self._marks = "█░" if _can_write("█░", stream) else "#."

    def show(self):
        """Draw the line anew."""
        share = min(1.0, self.step / self.total) if self.total else 0.0
        self._draw(self.pieces(), share, None)

    def show_end(self, run):
        """Draw the line for the last time and leave it there."""
        share = min(1.0, len(run.step_seconds) / self.total) if self.total else 0.0
        self._draw([self.ending(run)], share, RED if run.error else GREEN)
        self.stream.write("\n")
        self.stream.flush()

    def _draw(self, pieces, share, colour):
        columns = shutil.get_terminal_size().columns - 1
        room = columns - len(self.label) - 1
        length = min(30, max(0, room - 30))
        filled = int(round(share * length))
        bar = self._marks[0] * filled + self._marks[1] * (length - filled)
        text = _fitting(pieces, room - length - 1)
        if colour is not None and self._colours:
            bar = colour + bar + PLAIN
        self.stream.write("\r\x1b[K" + " ".join(part for part in (self.label, bar, text) if part))
        self.stream.flush()


def _fitting(pieces, room):
    """Return as many of the pieces as there is room for; the first one in any case, cut short."""
    text = pieces[0]
    for piece in pieces[1:]:
        if len(text) + 2 + len(piece) > room:
            break
        text += "  " + piece
    return text[: max(0, room)]


def _can_write(text, stream):
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
