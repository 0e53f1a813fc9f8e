"""The HTML page of a report: valid, self-contained, complete, and with every value escaped."""

import json
import pathlib
import re

import pytest
from helpers.made_reports import MADE
from helpers.pages import PageReader, skip_without_report_extra

from ampcompat.abtest import Finding, Memory, Report, Run
from ampcompat.abtest.judging import advice

skip_without_report_extra()

from ampcompat.abtest.report import charts, html  # noqa: E402
from ampcompat.support.terminal import printable  # noqa: E402

NAMES = ("good", "broken", "hostile", "one level", "nothing measured", "no runs")


@pytest.fixture(scope="module")
def pages():
    """Return every kind of page as text."""
    made = {name: MADE[name]() for name in NAMES}
    for name in ("good", "broken", "one level"):
        advice.advise(made[name])
    return {name: html.to_html(report) for name, report in made.items()}


@pytest.fixture(params=NAMES)
def text(request, pages):
    """Every kind of page."""
    return pages[request.param]


def test_a_page_is_valid_and_complete(text):
    read = PageReader(text)
    assert read.errors == []
    assert text.startswith("<!DOCTYPE html>")
    assert [attrs["lang"] for attrs in read.all("html")] == ["en"]
    assert len(read.all("title")) >= 1 and len(read.all("h1")) == 1 and len(read.all("main")) == 1
    viewport = [attrs["content"] for attrs in read.all("meta") if attrs.get("name") == "viewport"]
    assert len(viewport) == 1 and "width=device-width" in viewport[0]
    ids = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_a_page_loads_nothing(text):
    read = PageReader(text)
    ids = {"#" + attrs["id"] for _, attrs in read.tags if "id" in attrs}
    assert set(read.references()) <= ids
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in read.tags}
    assert not [attrs for attrs in read.all("script") if "src" in attrs]
    assert not [name for _, attrs in read.tags for name in attrs if name.startswith("on")]
    assert "default-src 'none'" in text


def test_every_chart_is_an_image_and_the_specification_of_an_interactive_one(pages):
    specs = [json.loads(each) for each in re.findall(r'<script type="application/json">(.*?)</script>', pages["good"])]
    assert len(specs) == len(PageReader(pages["good"]).all("figure")) == 5
    lines = specs[1]  # of the loss, after the difference
    menus, signals = lines["params"][:2], lines["params"][2:]
    assert [(param["name"], param["bind"]["input"]) for param in menus] == [
        ("smoothing", "select"),
        ("log", "checkbox"),
    ]
    assert [param["name"] for param in signals] == ["hidden", "crossed", "x_low", "x_high", "y_low", "y_high"]
    assert lines["layer"][-1]["mark"]["type"] == "rule" and lines["layer"][0]["encoding"]["color"]["legend"] is None
    assert all("hidden" in each["transform"][0]["filter"] for each in specs)
    assert "prefers-color-scheme: dark" in pages["good"] and "const CONFIGS" in pages["good"]


def test_one_legend_has_every_run_with_its_colour_and_seeds_and_acts_on_all_charts(pages):
    runs = {each["run"]: each for each in json.loads(re.search(r"RUNS = (\[.*?\]);", pages["broken"]).group(1))}
    assert runs["O0"]["colour"] == charts.COLOURS["O0"]
    assert all(each["seeds"] == 1 for each in runs.values())
    assert (runs["O0"]["remark"], runs["O3"]["remark"]) == ("", "failed at its start")
    for text in ('id="legend"', 'id="apart"', 'id="unzoom"', 'class="soft finger"', 'class="soft mouse"'):
        assert text in pages["good"]


@pytest.mark.parametrize("name", ["good", "broken", "one step"])
def test_the_page_holds_the_rows_of_a_chart_by_line_and_field(name):
    for chart in charts.charts(MADE[name]()):
        packed = html.packed(chart.spec)
        rows = []
        for line in packed["usermeta"]["lines"]:
            columns = [[(key, value) for value in values] for key, values in line["along"].items()]
            rows += [dict(line["fields"], **dict(pairs)) for pairs in (zip(*columns) if columns else [()])]
        assert rows == chart.spec["data"]["values"] and packed["data"] == {"values": []}


def test_a_page_has_at_most_a_megabyte_and_a_half():
    report, repeat = MADE["long"](), MADE["long"]().runs["O0"]
    for level in list(report.runs):
        report.runs[level].repeats = [repeat] * 4
        report.runs[f"{level} again"] = report.runs[level]
    assert len(html.to_html(report).encode("utf-8")) <= 1500000


def test_a_page_is_accessible_to_screen_readers(text):
    read = PageReader(text)
    charts = [attrs for attrs in read.all("svg") if attrs.get("role") == "img"]
    assert all(attrs["aria-label"] for attrs in charts)
    assert len(charts) == len(read.all("figure")) == len(read.all("figcaption"))
    assert len(read.all("caption")) == len(read.all("table"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in read.all("th"))
    levels = [int(tag[1]) for tag, _ in read.tags if re.match("h[1-6]$", tag)]
    assert all(later <= earlier + 1 for earlier, later in zip(levels, levels[1:]))


def test_no_value_is_interpreted_as_markup(pages):
    assert "<script>alert" not in pages["hostile"]
    assert PageReader(pages["hostile"]).text.count("<script>alert('x')") >= 8


@pytest.mark.parametrize("value", ["\x00\x08", "\x1b[31m", "\ud800", "a\x7fb"], ids=ascii)
def test_characters_that_a_page_cannot_hold_are_written_out(value):
    page = html.to_html(Report(environment={"script": value}))
    assert printable(value) in page and value not in page and page.encode("utf-8")


def test_the_verdict_comes_first_with_a_badge_per_level_and_the_command(pages):
    read = PageReader(pages["good"])
    said = read.text
    assert said.index("Take O2: the first to reach") < said.index("Levels") < said.index("Charts")
    badges = [attrs["class"] for attrs in read.all("span") if attrs.get("class", "").startswith("badge")]
    assert badges == ["badge baseline", "badge accepted", "badge accepted", "badge not-judged"]
    assert "ampcompat run --opt-level O2 examples/digits_cnn.py" in said


def test_a_variant_that_is_recommended_has_no_command_since_run_has_no_option_for_it():
    report = MADE["good"]()
    report.runs["patched casts"] = report.runs.pop("O2")
    advice.advise(report)
    assert report.advice.startswith("Take patched casts: ") and "ampcompat run" not in html.to_html(report)


def test_one_table_holds_what_the_terminal_shows_and_another_the_environment(pages):
    said = PageReader(pages["good"]).text
    cells = ("0.2718 \u00b1 0.0036", "~ 2.01", "252 MiB", "3/200")
    for value in cells + ("examples/digits_cnn.py", "2.13.0+cpu", "Linux-6.1-x86_64"):
        assert value in said


def test_a_report_shows_itself_in_a_notebook():
    shown = Report(runs={"O1": Run()})._repr_html_()
    assert shown.startswith("<iframe") and "&lt;h1&gt;" in shown


def test_a_failed_level_has_its_error_and_a_closed_traceback_and_equal_findings_are_shown_once(pages):
    said = PageReader(pages["broken"]).text
    assert "RuntimeError: out of memory" in said
    assert re.search(r"<details>\s*<summary>Traceback</summary>\s*<pre[^>]*>Traceback \(most recent", pages["broken"])
    assert said.count("The output of body.4 was nan in forward.") == 1 and "steps 60 to 119, O1" in said


def test_of_many_different_findings_only_the_first_are_open():
    findings = [Finding(step, f"no. {step}") for step in range(9)]
    said = html.to_html(Report(runs={"O1": Run(findings=findings, skipped=list(range(9)))}))
    last_open = said.index(f"no. {html.SHOWN_CAUSES - 1}")
    assert last_open < said.index("<summary>6 more</summary>") < said.index("no. 8")


def test_measured_memory_is_shown_with_its_notes():
    run = Run(memory=Memory(parameters=1100, activations=10, peak_total=1160), memory_notes=["a note on it"])
    read = PageReader(html.to_html(Report(runs={"O0": run, "O1": run})))
    cells = re.findall("<t[dh][^>]*>([^<]*)<", html.to_html(Report(runs={"O0": run})))
    assert "1.07 KiB" in cells and read.text.count("O0 O1: a note on it") == 1


def test_the_hint_to_scroll_is_shown_above_wide_tables_only():
    css = pathlib.Path(charts.__file__).with_name("page.css").read_text(encoding="utf-8")
    displays = dict(re.findall(r"^(\S*\s?>?\s?\.scroll-hint) \{ display: (\w+)", css, re.MULTILINE))
    assert displays == {".scroll-hint": "none", ".wide > .scroll-hint": "block"}
