"""Reports as JSON: what is written is read back, and anything else is an error."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcompat.abtest import Finding, Memory, Report, Run
from ampcompat.errors import AmpValueError

STEPS = st.integers(0, 10**6)
SERIES = st.lists(st.tuples(STEPS, st.integers(0, 3), st.floats(width=32)), max_size=4)
MEMORY = st.builds(Memory, parameters=st.none() | st.integers(0, 2**60), fragmentation=st.none() | st.floats(0, 1))
RUNS = st.builds(
    Run,
    status=st.sampled_from(["ok", "stopped", "failed", "interrupted"]),
    error=st.none() | st.text(max_size=5),
    loss=SERIES,
    scale=SERIES,
    skipped=st.lists(STEPS, max_size=3),
    step_seconds=st.lists(st.floats(0, 1e3), max_size=3),
    memory=MEMORY,
    predicted=st.none() | MEMORY,
    findings=st.lists(st.builds(Finding, step=STEPS, text=st.text(max_size=5)), max_size=2),
    verdict=st.text(max_size=5),
)


@given(st.builds(Report, runs=st.dictionaries(st.sampled_from(["O0", "O1", "O2"]), RUNS, max_size=2)))
def test_a_report_survives_json(report):
    text = report.to_json()
    assert repr(Report.from_json(text)) == repr(report)  # by repr, since nan is not equal to itself


def test_losses_that_are_not_finite_are_strings_in_json():
    run = Run(loss=[(0, 0, math.nan), (1, 0, math.inf), (2, 0, -math.inf)])
    tree = json.loads(Report(runs={"O1": run}).to_json())
    assert [value for _, _, value in tree["runs"]["O1"]["loss"]] == ["nan", "inf", "-inf"]
    assert tree["schema"] == 1


def test_the_losses_of_one_step_are_averaged():
    run = Run(loss=[(0, 0, 1.0), (0, 0, 3.0), (0, 1, 9.0), (1, 0, 4.0)])
    assert run.losses() == {0: 2.0, 1: 4.0}
    assert run.losses(1) == {0: 9.0}


def test_unknown_keys_are_ignored():
    tree = json.loads(Report(runs={"O0": Run()}).to_json())
    tree["runs"]["O0"]["invented_later"] = 1
    assert Report.from_json(json.dumps(tree)).runs["O0"] == Run()


@pytest.mark.parametrize(
    "text, says",
    [("{", "not JSON"), ("[]", "not a report"), ('{"schema": 2, "runs": {}}', "schema 2"), ("{}", "not a report")],
)
def test_what_is_not_a_report_is_an_error(text, says):
    with pytest.raises(AmpValueError, match=says):
        Report.from_json(text)


@pytest.mark.parametrize(
    "damage",
    [
        [],
        {"status": "odd"},
        {"loss": [[0, 0]]},
        {"loss": [["a", 0, 1.0]]},
        {"scale": [[0, 0, "much"]]},
        {"skipped": "abc"},
        {"step_seconds": ["long"]},
        {"samples": [None]},
        {"memory": {"parameters": "12"}},
        {"predicted": 3},
        {"findings": [1]},
        {"repeats": [{"skipped": 7}]},
        {"verdict": 1},
    ],
    ids=str,
)
def test_a_damaged_report_is_an_error_in_one_line(damage):
    with pytest.raises(AmpValueError, match="^This report is damaged, .*$"):
        Report.from_json(json.dumps({"schema": 1, "runs": {"O1": damage}}))
