"""Charts of reports: drawn whatever a report contains, in the same style, without the user's matplotlib settings."""

import functools
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from made_reports import HOSTILE, MADE, good_report, made_run

from ampcompat.abtest import Report, save_figure, to_html
from ampcompat.abtest.report import chart_style
from ampcompat.abtest.report import charts as figures
from ampcompat.errors import AmpError

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["loss", "divergence", "scale", "time", "memory"]


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="figures need matplotlib, of the extra `report`")


@pytest.fixture(scope="module")
def charts_of():
    """Return a function that draws a made report once: ``charts_of(name)``."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib, of the extra `report`")
    return functools.lru_cache(maxsize=None)(lambda name: figures.charts(MADE[name](), "r0-"))


def texts(svg):
    """Return what is written in a chart."""
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(SVG + "text")]


@pytest.mark.parametrize("name", MADE)
def test_every_report_has_every_chart_as_valid_xml(charts_of, name):
    charts = charts_of(name)
    assert [chart.name for chart, _ in charts] == NAMES
    for chart, svg in charts:
        tree = ElementTree.fromstring(svg)
        ids = [each.attrib["id"] for each in tree.iter() if "id" in each.attrib]
        assert len(ids) == len(set(ids)) and all(each.startswith("r0-" + chart.name) for each in ids)
        assert "width" not in tree.attrib and "viewBox" in tree.attrib


def test_texts_of_a_chart_are_texts_and_name_the_levels(charts_of):
    charts = {chart.name: texts(svg) for chart, svg in charts_of("good")}
    for name in ("loss", "divergence", "scale"):
        assert set(good_report().runs) <= set(charts[name])
    assert any(text.startswith("O2: 3") for text in charts["scale"])  # the steps that it skipped
    assert any("ms" in text for text in charts["time"])
    assert charts["memory"].count("formula") == 4 and "252 MiB" in charts["memory"]


def test_losses_that_are_not_finite_are_marked_and_explained(charts_of):
    charts = {chart.name: (chart, texts(svg)) for chart, svg in charts_of("broken")}
    assert {"nan", "inf"} <= set(charts["loss"][1])
    assert "inf" in charts["divergence"][1] and "nan" not in charts["divergence"][1]
    assert "inf (▲) where a loss is not finite" in charts["divergence"][0].caption
    assert "nan (×) or inf (▲)" in charts["loss"][0].caption


def test_a_loss_that_is_only_nan_makes_the_divergence_inf(matplotlib):
    report = Report(runs={"O0": made_run("O0", 4), "O1": made_run("O1", 4)})
    report.runs["O1"].loss[2] = (2, 0, float("nan"))
    charts = {chart.name: texts(svg) for chart, svg in figures.charts(report)}
    assert "nan" in charts["loss"] and "inf" not in charts["loss"]
    assert "inf" in charts["divergence"] and "nan" not in charts["divergence"]
    assert not {"nan", "inf"} & set(charts["scale"])


def test_a_spike_of_one_step_in_many_thousands_is_drawn_and_the_chart_stays_small(charts_of):
    (_, svg), (_, divergence) = charts_of("long")[:2]
    assert len(svg) < 200000
    assert "no difference" not in " ".join(texts(divergence))


@pytest.mark.parametrize("name", ["nothing measured", "no runs"])
def test_a_chart_without_data_says_so(charts_of, name):
    said = {chart.name: " ".join(texts(svg)) for chart, svg in charts_of(name)}
    assert "no level recorded a loss" in said["loss"]
    assert "nothing to compare" in said["divergence"]
    assert "no level recorded a scale" in said["scale"]
    assert "no level measured its memory" in said["memory"]


def test_equal_losses_are_reported_as_no_difference(matplotlib):
    report = Report(runs={"O0": made_run("O0", 5), "O1": made_run("O1", 5)})
    said = {chart.name: " ".join(texts(svg)) for chart, svg in figures.charts(report)}
    assert "no difference at any step" in said["divergence"]


def test_a_level_has_the_same_style_in_every_report_and_another_than_other_levels():
    levels = ["O0", "O1", "O2", "O3", "O4", "O5"]
    full = Report(runs={level: made_run(level, 1) for level in levels})
    seen = [chart_style.line_style(full, level) for level in levels]
    assert len({colour for colour, _ in seen}) == len({str(dashes) for _, dashes in seen}) == len(levels)
    for level, style in zip(levels, seen):
        assert chart_style.line_style(Report(runs={level: full.runs[level]}), level) == style


@pytest.mark.parametrize(
    "name, shown", [("O1", "O1"), ("_x", " _x"), ("$a$", r"\$a\$"), ("a\nb", "a b"), ("\u2603", r"\u2603")]
)
def test_names_are_escaped_for_matplotlib(name, shown):
    assert chart_style.label(name) == shown


def test_long_names_are_cut():
    assert len(chart_style.label(HOSTILE.replace("$", "") * 9)) <= 16


@pytest.mark.parametrize("count", [1, 2])
def test_an_image_has_300_dots_per_inch(matplotlib, tmp_path, count):
    from matplotlib.image import imread

    path = tmp_path / "figure.png"
    figures.save_side_by_side([(name, MADE[name]()) for name in ("nothing measured", "no runs")[:count]], str(path))
    height, width = imread(str(path)).shape[:2]
    assert width == pytest.approx(300 * max(figures.IMAGE_WIDTH, 3.4 * count), abs=2)
    assert height > width / 2


def test_one_report_needs_no_list_and_other_formats_are_drawn(matplotlib, tmp_path):
    path = tmp_path / "figure.svg"
    save_figure(Report(runs={"O0": made_run("O0", 2)}), str(path))
    assert ElementTree.parse(str(path)).getroot().tag == SVG + "svg"


def test_an_unknown_format_is_one_clear_error(matplotlib, tmp_path):
    with pytest.raises(AmpError, match="Cannot draw .*figure.odd"):
        save_figure(Report(), str(tmp_path / "figure.odd"))


def test_the_users_settings_are_neither_used_nor_changed(matplotlib):
    report = Report(runs={"O0": made_run("O0", 2)})
    plain = figures.charts(report)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 40, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert figures.charts(report)[0][1] == plain[0][1]
        assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_there_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    for draw in (figures.charts, lambda report: save_figure(report, str(tmp_path / "f.png")), to_html):
        with pytest.raises(AmpError, match=r"pip install 'ampcompat\[report\]'"):
            draw(Report())
