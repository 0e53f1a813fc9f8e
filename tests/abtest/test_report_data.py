"""Reports as JSON: what is written is read back, and anything else is an error that names the place."""

import gzip
import importlib
import json
import math
import pathlib
import re
import sys

import pytest
from helpers.altered_reports import count
from hypothesis import given
from hypothesis import strategies as st

from ampcompat.abtest import Finding, Memory, Report, Run, report_data
from ampcompat.abtest.report_data import Equivalence, Speed
from ampcompat.abtest.schema import Series, write
from ampcompat.errors import AmpValueError

STEPS = st.integers(0, 10**6)
VALUES = (st.floats(width=32) | st.floats()).map(lambda value: value + 0.0)  # no -0.0, which equals 0.0
SERIES = st.lists(st.tuples(STEPS, st.integers(0, 3), VALUES), max_size=6)
SECONDS = st.lists(st.integers(0, 10**9).map(lambda microseconds: microseconds / 1e6), min_size=3, max_size=3)
MEMORY = st.builds(Memory, parameters=st.none() | st.integers(0, 2**60), fragmentation=st.none() | st.floats(0, 1))
RUNS = st.builds(
    Run,
    status=st.sampled_from(["ok", "stopped", "failed", "interrupted"]),
    error=st.none() | st.text(max_size=5),
    loss=SERIES,
    scale=SERIES,
    skipped=st.lists(STEPS, max_size=3),
    step_seconds=SECONDS,
    samples=st.none() | st.lists(STEPS, min_size=3, max_size=3),
    watched=st.lists(STEPS, max_size=3),
    metrics=st.dictionaries(st.text(max_size=3), st.lists(st.tuples(STEPS, VALUES), max_size=3), max_size=2),
    memory=MEMORY,
    findings=st.lists(st.builds(Finding, step=STEPS, text=st.text(max_size=5)), max_size=2),
    verdict=st.text(max_size=5),
)


@given(st.builds(Report, runs=st.dictionaries(st.sampled_from(["O0", "O1", "O2"]), RUNS, max_size=2)))
def test_a_report_survives_json(report):
    text = report.to_json()
    assert repr(Report.from_json(text)) == repr(report)  # by repr, since nan is not equal to itself


def test_series_are_packed_and_what_json_lacks_is_text():
    run = Run(loss=[(0, 0, math.nan), (1, 0, math.inf), (3, 1, -math.inf)], step_seconds=[0.25, 0.5, 0.5, 0.5])
    run.scale = [(step, 0, 65536.0) for step in range(4)]
    run.metrics = {"accuracy": [(2, 0.1), (2, 0.3)]}
    tree = json.loads(Report(runs={"O1": run}).to_json())
    written = tree["runs"]["O1"]
    assert written["loss"] == {"steps": [1, 1, 2], "losses": [0, 0, 1], "bits": 32, "values": ["nan", "inf", "-inf"]}
    assert written["scale"] == {"steps": [[1, 4]], "losses": [[0, 4]], "bits": 32, "values": [[65536.0, 4]]}
    assert written["metrics"]["accuracy"] == {"steps": [3, 0], "losses": None, "bits": 64, "values": [0.1, 0.3]}
    assert written["step_microseconds"] == [250000, [500000, 3]]
    assert tree["schema"] == 2


def test_floats_of_32_bits_are_written_with_the_digits_that_they_need():
    third = 0.3333333432674408  # the float32 nearest to 1/3
    run = Run(loss=[(0, 0, third), (1, 0, 0.5)])
    text = Report(runs={"O1": run}).to_json()
    assert '"values":[0.33333334,0.5]' in text
    assert Report.from_json(text).runs["O1"].loss == [(0, 0, third), (1, 0, 0.5)]


@pytest.mark.parametrize("name, is_packed", [("report.json", False), ("report.json.gz", True)])
def test_a_file_is_compressed_if_its_name_says_so(tmp_path, name, is_packed):
    report, path = Report(runs={"O0": Run(loss=[(0, 0, 2.0)])}), tmp_path / name
    report.save(path)
    content = path.read_bytes()
    assert (content[:2] == b"\x1f\x8b") == is_packed
    assert (gzip.decompress(content) if is_packed else content).decode("utf-8") == report.to_json()
    assert Report.load(path) == report
    assert [each.name for each in tmp_path.iterdir()] == [name]


DAMAGED = {
    "no gzip": b"\x1f\x8b no gzip",
    "empty": b"",
    "cut off": gzip.compress(b"{}")[:12],
    "not UTF-8": gzip.compress(b"\xff"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_compressed_file_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "report.json.gz"
    path.write_bytes(content)
    with pytest.raises(AmpValueError, match="report.json.gz"):
        Report.load(path)


def test_the_losses_of_one_step_are_averaged():
    run = Run(loss=[(0, 0, 1.0), (0, 0, 3.0), (0, 1, 9.0), (1, 0, 4.0)])
    assert run.losses() == {0: 2.0, 1: 4.0}
    assert run.losses(1) == {0: 9.0}
    run.loss[1] = (0, 0, 5.0)
    run.loss += [(1, 0, 6.0)]
    assert run.losses() == {0: 3.0, 1: 5.0}


def test_unknown_keys_are_ignored():
    tree = json.loads(Report(runs={"O0": Run()}).to_json())
    tree["runs"]["O0"]["invented_later"] = 1
    assert Report.from_json(json.dumps(tree)).runs["O0"] == Run()


@pytest.mark.parametrize(
    "damage, place",
    [
        ([], ""),
        ({"status": "odd"}, ".status"),
        ({"loss": {"values": [1.0]}}, ".loss"),
        ({"loss": {"steps": [1], "losses": [0], "values": ["much"]}}, ".loss.values"),
        ({"scale": {"steps": [-1]}}, ".scale.steps"),
        ({"watched": [2**31, 1]}, ".watched"),
        ({"skipped": "abc"}, ".skipped"),
        ({"step_microseconds": [[1, 10**9]]}, ".step_microseconds"),
        ({"samples": [8]}, ""),
        ({"memory": {"parameters": "12"}}, ".memory.parameters"),
        ({"findings": [1]}, ".findings.0"),
        ({"repeats": [{"skipped": [3, -7]}]}, ".repeats.0.skipped.1"),
        ({"repeats": [{"repeats": [{}]}]}, ""),
        ({"verdict": "\ud800"}, ".verdict"),
        ({"identity": {"jobs": 10**40}}, ".identity.jobs"),
    ],
    ids=str,
)
def test_a_damaged_report_is_refused_with_the_place(damage, place):
    told = f"This report is damaged at runs.O1{place}: write it again with `ampcompat ab`."
    with pytest.raises(AmpValueError, match=f"^{re.escape(told)}$"):
        Report.from_json(json.dumps({"schema": 2, "runs": {"O1": damage}}))


def test_of_altered_reports_each_is_read_or_refused_with_the_place():
    counts = count(150)  # ``python -m helpers.altered_reports`` tries more
    assert set(counts) == {"read", "refused"} and min(counts.values()) > 15


@pytest.mark.skipif(sys.version_info < (3, 9), reason="ast.unparse, with which it is made, came with Python 3.9")
@pytest.mark.parametrize("cls", [Report, Run, Speed, Equivalence, Series, Memory, Finding])
def test_the_page_of_the_format_has_a_row_for_every_name(cls, monkeypatch):
    folder = pathlib.Path(__file__).parents[2] / ".ci"
    if not folder.exists():
        pytest.skip("the documentation is not in this copy of the tests")
    monkeypatch.syspath_prepend(str(folder))
    text = importlib.import_module("report_format").page()
    table = text.partition(f"\n## {cls.__name__}\n")[2].partition("\n## ")[0]
    assert re.findall("^\\| `(\\w+)` \\| \\S.* \\| \\S.* \\|$", table, re.MULTILINE) == list(write(cls()))
    assert f"schema {report_data.SCHEMA}" in text
