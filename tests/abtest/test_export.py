"""Exports of a report: a CSV file, and event files for TensorBoard."""

import csv
import io
import math
import sys
import types

import pytest
from helpers.made_reports import made_run

from ampcompat.abtest import Report
from ampcompat.abtest.report import export


@pytest.fixture
def report():
    """Return two levels, one with a second seed, a metric, a loss that is nan, and two losses."""
    found = Report(runs={"O0": made_run("O0", 3), "O2": made_run("O2", 3)})
    found.runs["O0"].repeats = [made_run("O0", 3, seed=1)]
    found.runs["O0"].metrics = {"accuracy, top 1": [(1, 0.25), (2, 0.5)]}
    found.runs["O2"].loss = [(0, 0, 2.0), (0, 1, 7.0), (1, 0, math.nan), (2, 0, 1.0)]
    return found


def expected_series(report):
    """Return ``{(level, repeat, series): [(step, value), …]}`` of all that ``made_run`` and the fixture put there."""
    found = {}
    for level, repeat in (("O0", 0), ("O0", 1), ("O2", 0)):
        run = report.run_of(level, repeat)
        for kind, rows in (("loss", run.loss), ("scale", run.scale)):
            for step, loss_id, value in rows:
                found.setdefault((level, repeat, f"{kind}/{loss_id}"), []).append((step, value))
    found["O0", 0, "metric/accuracy, top 1"] = [(1, 0.25), (2, 0.5)]
    return found


def test_a_csv_file_has_a_row_for_each_loss_scale_and_metric(report):
    titles, *rows = csv.reader(io.StringIO(export.to_csv(report)))
    assert titles == ["level", "repeat", "series", "step", "value"]
    found = {}
    for level, repeat, series, step, value in rows:
        found.setdefault((level, int(repeat), series), []).append((int(step), float(value)))
    assert sorted(map(repr, found.items())) == sorted(map(repr, expected_series(report).items()))  # nan equals nan


class Writer:
    """A stand-in of ``SummaryWriter`` that keeps what it is given."""

    folders = {}

    def __init__(self, folder):
        self._scalars = self.folders.setdefault(folder, [])

    def add_scalar(self, name, value, step):
        """Keep a scalar."""
        self._scalars.append((name, step, value))

    def close(self):
        """Mark the end."""
        self._scalars.append("closed")


def test_each_run_has_a_folder_of_event_files(report, monkeypatch, tmp_path):
    module = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "folders", {})
    export.to_tensorboard(report, str(tmp_path))
    assert sorted(Writer.folders) == [str(tmp_path / name) for name in ("O0-0", "O0-1", "O2-0")]
    scalars = Writer.folders[str(tmp_path / "O0-0")]
    assert scalars[-1] == "closed"
    assert [each for each in scalars if each[0] == "metric/accuracy, top 1"] == [
        ("metric/accuracy, top 1", 1, 0.25),
        ("metric/accuracy, top 1", 2, 0.5),
    ]
    assert ("loss/1", 0, 7.0) in Writer.folders[str(tmp_path / "O2-0")]


def test_tensorboard_reads_the_event_files(report, tmp_path):
    pytest.importorskip("tensorboard", reason="torch's SummaryWriter needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export.to_tensorboard(report, str(tmp_path))
    for (level, repeat, series), points in expected_series(report).items():
        read = EventAccumulator(str(tmp_path / f"{level}-{repeat}")).Reload().Scalars(series)
        values = [value for _, value in points]
        assert [event.step for event in read] == [step for step, _ in points]
        assert [event.value for event in read] == pytest.approx(values, rel=1e-6, nan_ok=True)  # float32
