"""Charts of reports: specifications of Vega-Lite that are drawn whatever a report contains."""

import math
import struct
import sys

import pytest
from helpers.made_reports import MADE, made_run

from ampcompat.abtest import Memory, Report, Run, save_figure
from ampcompat.abtest.report import charts, renderer
from ampcompat.abtest.report.text import image_heading
from ampcompat.errors import AmpError


@pytest.fixture
def library():
    return pytest.importorskip("vl_convert", reason="images need vl-convert-python, of the extra `report`")


def spec_of(report, name):
    """Return the specification of one chart."""
    (spec,) = [chart.spec for chart in charts.charts(report) if chart.name == name]
    return spec


def rows_of(report, name):
    """Return the rows of one chart."""
    return spec_of(report, name)["data"]["values"]


@pytest.mark.parametrize("name", ["good", "broken", "hostile", "one step", "two losses"])
def test_every_chart_can_be_drawn(library, name):
    for chart in charts.charts(MADE[name]()):
        assert renderer.image(dict(chart.spec, width=300, height=220), "svg").startswith("<svg")


@pytest.mark.parametrize("name", ["nothing measured", "no runs"])
def test_a_chart_without_data_is_left_out(name):
    assert charts.charts(MADE[name]()) == []


def test_values_that_are_not_finite_are_gaps():
    rows = [row for row in rows_of(MADE["broken"](), "loss-0") if row["run"] == "O1" and row["smoothed"] == "none"]
    assert [row["value"] is None for row in rows] == [row["step"] >= 60 for row in rows]


def test_a_spike_of_one_step_in_many_thousands_is_drawn_and_the_chart_stays_small():
    rows = rows_of(MADE["long"](), "loss-0")
    assert max(row["value"] for row in rows if row["smoothed"] == "none") == 40.0
    assert len(rows) < 2 * 3 * 1.1 * charts.POINTS


def test_the_difference_is_that_of_equal_steps():
    report = Report(runs={"O0": made_run("O0", 5), "O1": made_run("O1", 5)})
    report.runs["O1"].loss = [(step, 0, 1.5 * value) for step, _, value in report.runs["O0"].loss]
    assert [row["value"] for row in rows_of(report, "difference")] == pytest.approx([0.5] * 15, rel=1e-4)


def test_of_a_loss_scale_the_changes_the_end_and_the_skipped_steps_are_kept():
    run = Run(scale=[(step, 0, value) for step, value in enumerate([4.0, 4.0, 2.0, 2.0, 2.0, 2.0])], skipped=[3])
    rows = rows_of(Report(runs={"O0": run}), "scale")
    assert [(row["step"], row["scale"], row["skipped"]) for row in rows] == [
        (0, 4.0, False),
        (2, 2.0, False),
        (3, 2.0, True),
        (5, 2.0, False),
    ]


def test_loss_scales_that_are_constant_have_no_chart():
    runs = {level: Run(scale=[(step, 0, scale) for step in range(9)]) for level, scale in (("O0", 1.0), ("O2", 128.0))}
    assert charts.charts(Report(runs=runs)) == []


def test_no_two_rows_have_the_same_colour():
    names = list(charts.COLOURS) + ["unchanged", "my own", "another"]
    legend = charts.legend(Report(runs={name: made_run("O1", 5) for name in names}))
    assert len({run["colour"] for run in legend}) == len(names)


def test_a_run_has_the_same_colour_in_every_chart():
    report = Report(runs={name: made_run("O1", 5) for name in ("torch 1", "O1", "torch 2")}, baseline="torch 1")
    specs = [spec_of(report, name) for name in ("difference", "loss-0")]
    scales = [spec["layer"][0]["encoding"]["color"]["scale"] for spec in specs]
    difference, loss = [dict(zip(scale["domain"], scale["range"])) for scale in scales]
    assert difference == {name: loss[name] for name in ("O1", "torch 2")} and len(set(loss.values())) == 3
    assert loss["O1"] == charts.COLOURS["O1"]


def test_lines_that_coincide_can_be_told_apart_since_what_is_drawn_later_is_narrower():
    runs = {level: made_run("O1", 5) for level in ("O0", "O1", "O2")}
    runs["O0"].repeats = [made_run("O0", 5)]
    loss = spec_of(Report(runs=runs), "loss-0")
    drawn = list(dict.fromkeys((row["seed"], row["run"]) for row in loss["data"]["values"]))
    assert drawn == [(2, "O0"), (1, "O0"), (1, "O1"), (1, "O2")]  # numbered as in the terminal
    scale = {"domain": ["O2", "O1", "O0"], "range": [1.5, 4.5]}
    assert loss["layer"][0]["encoding"]["strokeWidth"]["scale"] == scale


def test_a_run_without_a_finite_loss_is_marked_in_the_legend():
    nan = made_run("O3", 5)
    nan.loss = [(step, 0, math.nan) for step in range(5)]
    report = Report(runs={"O0": made_run("O0", 5), "O3": nan})
    for name in ("loss-0", "difference"):
        legend = spec_of(report, name)["layer"][0]["encoding"]["color"]["legend"]
        assert '["O3"]' in legend["labelExpr"] and "never finite" in legend["labelExpr"]


@pytest.mark.parametrize("parameters, unit, size", [(792, "B", 792), (3 * 2**20, "MiB", 3), (2**31, "GiB", 2)])
def test_the_unit_of_memory_is_that_of_the_largest_bar(parameters, unit, size):
    run = Run(memory=Memory(parameters=parameters, peak_total=parameters))
    memory = spec_of(Report(runs={"O0": run}), "memory")
    assert memory["encoding"]["x"]["title"] == unit + " at the peak"
    assert [row["size"] for row in memory["data"]["values"]] == [size]


def test_metrics_have_charts_of_their_own():
    run = made_run("O0", 5)
    run.metrics["accuracy"] = [(0, 0.5), (4, 0.75)]
    assert {row["value"] for row in rows_of(Report(runs={"O0": run}), "metric-accuracy")} == {0.5, 0.75}


def test_an_image_is_as_large_as_its_scale(library, tmp_path):
    sizes = []
    for scale in (0.5, 1.0):
        save_figure(MADE["one level"](), str(tmp_path / "x.png"), scale)
        sizes.append(struct.unpack(">II", (tmp_path / "x.png").read_bytes()[16:24]))
    assert sizes[1][0] == pytest.approx(2 * sizes[0][0], abs=2)


def test_without_the_library_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(AmpError, match="pip install"):
        save_figure(MADE["one level"](), str(tmp_path / "x.png"))


def panels_of(figure):
    return [panel for row in figure["vconcat"] for panel in row["hconcat"]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_charts_of_an_image_leave_no_cell_empty(count):
    drawn = charts.charts(MADE["good"]())[:1] * count
    figure = charts.figure(drawn)
    assert len(panels_of(figure)) == count
    assert [len(row["hconcat"]) for row in figure["vconcat"]] == [2] * (count // 2) + [1] * (count % 2)
    widths = {len(row["hconcat"]): row["hconcat"][0]["width"] for row in figure["vconcat"]}
    assert widths.get(1, math.inf) > 2 * widths.get(2, 0)


def test_an_image_is_headed_by_the_script_the_verdicts_with_their_reasons_and_the_advice():
    report = MADE["broken"]()
    report.environment.update(script="train.py --lr 1", device="cpu")
    report.advice = "Take O0.\nA second line."
    title, lines = image_heading(report)
    assert title == "train.py --lr 1" and lines[0].startswith("cpu, ") and lines[-1] == "Take O0."
    assert "O0 baseline" in lines and "O3 failed: RuntimeError: out of memory" in lines
    report.runs["O0"].status = "interrupted"
    assert f"O0 interrupted after {len(report.runs['O0'].step_seconds)} steps" in image_heading(report)[1]


def test_the_marks_of_an_image_of_several_charts_have_no_names_that_could_collide():
    panels = panels_of(charts.figure(charts.charts(MADE["good"]())))
    assert not [layer for panel in panels for layer in panel.get("layer", ()) if "name" in layer]


def test_a_loss_that_explodes_is_shown_on_a_logarithmic_axis_and_its_difference_up_to_100_percent():
    assert {"name": "log", "value": True} in spec_of(MADE["broken"](), "loss-0")["params"]
    assert spec_of(MADE["broken"](), "difference")["layer"][-1]["encoding"]["y"]["scale"] == {"domain": [-1, 1]}
