"""The file of events that a child process writes and its parent reads."""

import pytest

from ampcompat.abtest.recording.event_log import EventReader, apply_event, write_event
from ampcompat.abtest.report_data import Run


@pytest.mark.parametrize("unknown", [None, 0, 1, 2])
def test_one_step_with_an_unknown_number_of_samples_makes_the_rate_unknown(unknown):
    run = Run()
    for step in range(3):
        event = {"step": step, "loss": [[0, 0.5]], "scale": [[0, 2.0]], "skipped": step == 1, "seconds": 0.25}
        apply_event(run, dict(event, samples=None if step == unknown else 8, watched=step < 2, metrics=[["a", 1.0]]))
    assert run.samples == (None if unknown is not None else [8, 8, 8])
    assert run.loss == [(0, 0, 0.5), (1, 0, 0.5), (2, 0, 0.5)] and run.scale[-1] == (2, 0, 2.0)
    assert (run.skipped, run.watched, run.step_seconds) == ([1], [0, 1], [0.25] * 3)
    assert run.metrics == {"a": [(0, 1.0), (1, 1.0), (2, 1.0)]}


def test_long_series_take_few_bytes():
    run = Run(loss=[(step, 0, 0.5) for step in range(100)], step_seconds=[0.5] * 100, samples=[8] * 100)
    columns = run.loss.columns + (run.step_seconds, run.samples)
    assert sum(column.itemsize for column in columns) <= 28


def test_an_incomplete_line_is_not_read_yet(tmp_path):
    path = str(tmp_path / "events")
    reader = EventReader(path)
    with open(path, "w", encoding="utf-8") as file:
        write_event(file, {"step": 0, "text": "é"})
        file.write('{"step"')
    assert reader.new_events() == [{"step": 0, "text": "é"}]
    with open(path, "a", encoding="utf-8") as file:
        file.write(": 1}\n")
    assert reader.new_events() == [{"step": 1}]
    assert EventReader(str(tmp_path / "none")).new_events() == []
