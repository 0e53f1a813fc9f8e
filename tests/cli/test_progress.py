"""The progress of runs: a bar on a terminal, lines elsewhere."""

import io

import pytest

from ampcompat.abtest import Run
from ampcompat.cli import run_progress


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
    monkeypatch.setattr(run_progress, "BAR_INTERVAL", 0)
    stream = Terminal()
    shown = run_progress.make_progress(stream, steps=4)
    shown.interval = 0
    shown.begin("O1")
    for step in range(3):
        shown.update("O1", step_event(step))
    shown.end("O1", Run(step_seconds=[1.0] * 4, loss=[(3, 0, 0.5)]))
    lines = [line.replace("\x1b[K", "") for line in stream.getvalue().split("\r")]
    assert max(map(len, lines)) < columns + 1
    assert lines[-1].endswith("\n") and "\x1b" not in "".join(lines)
    if columns >= 80:
        assert "3/4  loss 0.25  ETA 0:00  scale 65536" in lines[-2]
        assert "4 steps in 0:00" in lines[-1] and "loss" not in lines[-1]


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    shown = run_progress.make_progress(stream)
    shown.begin("O0")
    shown.update("O0", step_event(0))
    shown.end("O0", Run(status="failed", error="ValueError: no", step_seconds=[1.0]))
    assert stream.getvalue() == "O0: failed after 1 steps: ValueError: no\n"


def test_several_runs_at_once_share_a_line_and_an_estimate(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    now = [0.0]
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now[0])
    stream = Terminal()
    shown = run_progress.make_progress(stream, steps=11, runs=4)
    for label in ("O0", "O1"):
        shown.begin(label)
        shown.update(label, step_event(0))
    now[0] = 5.0
    shown.update("O0", step_event(5))
    shown.update("O1", step_event(2))
    assert (shown.heading(), shown.status()) == ("0 of 4 runs", ["ETA 0:30 for all runs", "O0 6/11", "O1 3/11"])
    # At 1 s and 2.5 s a step 5 s and 20 s are left of these, and two runs of 17.5 s on average: two at once, 60 s / 2.
    shown.end("O1", Run(step_seconds=[1.0] * 11))
    assert shown.heading() == "O0 (run 1 of 4)" and shown.status()[0] == "6/11"
    assert stream.getvalue() == "O1 (run 2 of 4): 11 steps in 0:05\n"


def test_runs_of_a_resumed_series_are_numbered_as_those_of_the_whole():
    shown = run_progress.make_progress(io.StringIO(), runs=5, kept=2)
    shown.begin("O1")
    assert shown.heading() == "O1 (run 3 of 5)"
    shown.begin("O2")
    assert shown.heading() == "2 of 5 runs"
    shown.end("O1", Run(step_seconds=[1.0]))
    assert shown.heading() == "O2 (run 4 of 5)"


def test_a_log_says_once_that_a_run_is_starting_and_has_every_loss(monkeypatch):
    stream = io.StringIO()
    shown = run_progress.make_progress(stream)
    shown.interval = 0
    shown.begin("O0")
    for _ in range(3):
        shown.update("O0", None)
    event = {"step": 0, "loss": [[0, 0.5], [2, 0.125], [1, 3.0], [0, 0.25]], "scale": [[0, 8.0]]}
    shown.update("O0", event)
    assert stream.getvalue() == "O0: starting\nO0: step 1, losses 0.25, 3, 0.125, scale 8\n"
