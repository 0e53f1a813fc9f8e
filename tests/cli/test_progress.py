"""The progress of runs: a line that is redrawn on a terminal, lines elsewhere."""

import io

import pytest

from ampcompat.abtest import Run
from ampcompat.cli import run_progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


def add_steps(run, *losses):
    """Add steps with these losses to a run, of one ``scale_loss`` each."""
    for loss in losses:
        run.loss.append((len(run.step_seconds), 0, loss))
        run.scale.append((len(run.step_seconds), 0, 65536.0))
        run.step_seconds.append(1.0)


@pytest.mark.parametrize("columns", [10, 40, 80, 200])
def test_the_redrawn_line_fits_the_width_of_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream, run = Terminal(), Run()
    shown = run_progress.Progress(stream, steps=4)
    shown.interval = 0
    shown.begin("O1", run)
    for _ in range(3):
        add_steps(run, 0.25)
        shown.update("O1")
    add_steps(run, 0.5)
    shown.end("O1")
    drawn = [line.replace("\x1b[K", "") for line in stream.getvalue().split("\r")]
    assert max(map(len, drawn[:-1])) < columns and drawn[-1] == "O1: 4 steps in 0:00\n"
    if columns >= 80:
        assert drawn[-2] == "O1: 3/4, loss 0.25, ETA 0:00, scale 65536"


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, run = Terminal(), Run(status="failed", error="ValueError: no")
    shown = run_progress.Progress(stream)
    shown.begin("O0", run)
    add_steps(run, 0.25)
    shown.update("O0")
    shown.end("O0")
    assert stream.getvalue() == "O0: failed after 1 steps: ValueError: no\n"


def test_several_runs_at_once_share_a_line_and_an_estimate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now[0])
    stream, runs = io.StringIO(), {"O0": Run(), "O1": Run()}
    shown = run_progress.Progress(stream, steps=11, runs=4)
    for label, run in runs.items():
        shown.begin(label, run)
        add_steps(run, 0.25)
        shown.update(label)
    now[0] = 5.0
    add_steps(runs["O0"], *[0.25] * 5)
    add_steps(runs["O1"], *[0.25] * 2)
    assert (shown.heading(), shown.status()) == ("0 of 4 runs", ["ETA 0:30 for all runs", "O0 6/11", "O1 3/11"])
    # At 1 s and 2.5 s a step 5 s and 20 s are left of these, and two runs of 17.5 s on average: two at once, 60 s / 2.
    add_steps(runs["O1"], *[0.25] * 8)
    shown.end("O1")
    assert shown.heading() == "O0 (run 1 of 4)" and shown.status()[0] == "6/11"
    assert stream.getvalue() == "O1 (run 2 of 4): 11 steps in 0:05\n"


def test_runs_of_a_resumed_series_are_numbered_as_those_of_the_whole():
    shown = run_progress.Progress(io.StringIO(), runs=5, kept=2)
    shown.begin("O1", Run(step_seconds=[1.0]))
    assert shown.heading() == "O1 (run 3 of 5)"
    shown.begin("O2", Run())
    assert shown.heading() == "2 of 5 runs"
    shown.end("O1")
    assert shown.heading() == "O2 (run 4 of 5)"


def test_a_log_says_once_that_a_run_is_starting_and_has_every_loss():
    stream, run = io.StringIO(), Run()
    shown = run_progress.Progress(stream)
    shown.interval = 0
    shown.begin("O0", run)
    for _ in range(3):
        shown.update("O0")
    run.loss += [(0, 0, 0.5), (0, 2, 0.125), (0, 1, 3.0), (0, 0, 0.25)]
    run.scale, run.step_seconds = [(0, 0, 8.0)], [1.0]
    shown.update("O0")
    assert stream.getvalue() == "O0: starting\nO0: step 1, losses 0.25, 3, 0.125, scale 8\n"
