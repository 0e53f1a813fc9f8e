"""The progress of runs: a bar on a terminal, lines elsewhere."""

import io

import pytest

from ampcompat.abtest import Run
from ampcompat.cli import progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def step_event(step):
    return {"step": step, "loss": [[0, 0.25]], "scale": [[0, 65536.0]]}


@pytest.mark.parametrize("columns", [10, 40, 80, 200])
def test_a_bar_fits_the_width_of_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "BAR_INTERVAL", 0)
    stream = Terminal()
    shown = progress.make_progress(stream, steps=4)
    shown.interval = 0
    shown.begin("O1")
    for step in range(3):
        shown.update(step_event(step))
    shown.end(Run(step_seconds=[1.0] * 4, loss=[(3, 0, 0.5)]))
    lines = [line.replace("\x1b[K", "") for line in stream.getvalue().split("\r")]
    assert max(map(len, lines)) < columns + 1
    assert lines[-1].endswith("\n") and "\x1b" not in "".join(lines)
    if columns >= 80:
        assert "3/4  loss 0.25  ETA 0:00  scale 65536" in lines[-2]
        assert "4 steps, last loss 0.5" in lines[-1]


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    shown = progress.make_progress(stream)
    shown.begin("O0")
    shown.update(step_event(0))
    shown.end(Run(status="failed", error="ValueError: no", step_seconds=[1.0]))
    assert stream.getvalue() == "O0: failed after 1 steps: ValueError: no\n"
