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
        shown.update()
    add_steps(run, 0.5)
    shown.end()
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
    shown.update()
    shown.end()
    assert stream.getvalue() == "O0: failed after 1 steps: ValueError: no\n"


def test_the_estimate_counts_the_runs_that_wait_as_long_as_those_that_ran(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now[0])
    stream, runs = io.StringIO(), [Run(), Run()]
    shown = run_progress.Progress(stream, steps=11, runs=4)
    for run in runs:
        shown.begin("O0", run)
        add_steps(run, 0.25)
        shown.update()
        now[0] += 5.0
        add_steps(run, *[0.25] * 5)
        if run is runs[0]:
            shown.end()
    # At 1 s a step 5 s are left of this run of 10 s, and two others of (5 + 10) / 2 s.
    assert (shown.label, shown.status()[:3:2]) == ("O0 (run 2 of 4)", ["6/11", "ETA 0:20 for all runs"])
    assert stream.getvalue() == "O0 (run 1 of 4): 6 steps in 0:05\n"


def test_runs_of_a_resumed_series_are_numbered_as_those_of_the_whole():
    shown = run_progress.Progress(io.StringIO(), runs=5, kept=2)
    for number in (3, 4):
        shown.begin("O1", Run(step_seconds=[1.0]))
        assert shown.label == f"O1 (run {number} of 5)"
        shown.end()


def test_a_log_says_once_that_a_run_is_starting_and_has_every_loss():
    stream, run = io.StringIO(), Run()
    shown = run_progress.Progress(stream)
    shown.interval = 0
    shown.begin("O0", run)
    for _ in range(3):
        shown.update()
    run.loss += [(0, 0, 0.5), (0, 2, 0.125), (0, 1, 3.0), (0, 0, 0.25)]
    run.scale, run.step_seconds = [(0, 0, 8.0)], [1.0]
    shown.update()
    assert stream.getvalue() == "O0: starting\nO0: step 1, losses 0.25, 3, 0.125, scale 8\n"
