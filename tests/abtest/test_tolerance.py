"""Equivalence within a tolerance: shown, refuted, or not shown, and how many seeds would do."""

import json
import math
from statistics import mean, stdev

import pytest
from test_verdict import curve, report_with, run_with, seeds_of

from ampcompat.abtest import Report, to_text
from ampcompat.abtest.judging import advice
from ampcompat.abtest.judging.summary import summarize
from ampcompat.cli import main
from ampcompat.errors import AmpValueError

#: 97.5 % quantiles of Student's t distribution, from a table, by degrees of freedom.
T = {2: 4.303, 5: 2.571, 6: 2.447, 20: 2.086, 21: 2.080}


def scaled(*factors):
    """Return a run whose k-th seed has the losses of the k-th curve times the k-th factor from step 10 on."""
    return seeds_of(*[run_with(curve(k)[:10] + curve(k, factor)[10:]) for k, factor in enumerate(factors)])


def found(factors, tolerance):
    baseline = scaled(*[1.0] * max(2, len(factors)))
    return report_with(baseline, environment={"tolerance": tolerance}, O1=scaled(*factors)).runs["O1"].equivalence


@pytest.mark.parametrize(
    "factors, tolerance, result",
    [
        ([1.001, 1.002, 0.999], 0.01, "shown"),
        ([0.999, 0.998, 1.001], 0.01, "shown"),
        ([1.05, 1.052, 1.049], 0.01, "refuted"),
        ([0.95, 0.952, 0.949], 0.01, "refuted"),  # lower is not equal
        ([1.02, 0.99, 1.005], 0.01, "not shown"),
        ([1.02, 0.99, 1.005], 0.2, "shown"),
    ],
)
def test_equivalence_is_shown_where_the_interval_lies_within_the_tolerance(factors, tolerance, result):
    equivalence = found(factors, tolerance)
    values = [factor - 1 for factor in factors]
    half = T[2] * stdev(values) / math.sqrt(3)
    assert equivalence.result == result and equivalence.seeds == 3
    assert equivalence.difference == pytest.approx(mean(values), rel=1e-6)
    assert equivalence.interval == pytest.approx([mean(values) - half, mean(values) + half], rel=1e-6)


def test_the_seeds_that_would_do_are_the_least_whose_interval_would_lie_within_it():
    values = [0.006, -0.004, 0.001]
    equivalence = found([1 + value for value in values], 0.006)
    margin, deviation = 0.006 - mean(values), stdev(values)
    assert T[5] * deviation / math.sqrt(6) > margin >= T[6] * deviation / math.sqrt(7)
    assert equivalence.result == "not shown" and equivalence.seeds_needed == 7
    assert found([1.02, 0.99, 1.005], 0.001).seeds_needed is None  # the difference is larger than the tolerance


def test_one_seed_is_measured_by_how_far_the_baselines_seeds_are_apart():
    equivalence = found([1.002], 0.01)
    low, high = equivalence.interval
    assert equivalence.result == "not shown" and equivalence.seeds == 1 and high - low > 2 * 0.01
    assert found([1.002], 0.5).result == "shown"
    report = report_with(control=False, environment={"tolerance": 0.5}, O1=run_with(curve(0, 1.002)))
    assert (report.runs["O1"].equivalence.result, report.runs["O1"].equivalence.interval) == ("not shown", None)


def test_what_ends_nowhere_is_refuted_and_what_failed_is_not_shown():
    nan, failed = run_with(curve()[:50] + [math.nan] * 50), run_with(curve()[:5], status="failed", error="it left")
    report = report_with(environment={"tolerance": 0.1}, O1=nan, O2=failed)
    results = [report.runs[level].equivalence for level in ("O1", "O2")]
    assert [each.result for each in results] == ["refuted", "not shown"] and report.runs["O0"].equivalence is None
    assert Report.from_json(report.to_json()).runs["O1"].equivalence.difference == math.inf
    assert "O2: equivalence within 10 % is not shown with 1 seed" in to_text(report)
    assert "equivalence within 10 % is" in to_text(report, details=True)


def test_the_metric_of_the_target_is_what_counts_and_of_several_losses_the_worst():
    def logged(last, second=1.0):
        run = run_with(curve(), metrics={"accuracy": [(step, last * step / 100) for step in range(100)]})
        run.loss += [(step, 1, second) for step in range(100)]
        return run

    runs = {"baseline": seeds_of(logged(0.9), logged(0.9)), "O1": logged(0.45), "O2": logged(0.9, 1.5)}
    for given, differences in ({}, [0.0, 0.5]), ({"target": "accuracy=0.8"}, [-0.5, 0.0]):
        report = report_with(environment=dict(given, tolerance=0.1), **runs)
        assert [report.runs[level].equivalence.difference for level in ("O1", "O2")] == pytest.approx(differences)


@pytest.fixture
def saved(tmp_path):
    """Return the path of a report with a level that is accepted, one that is rejected, and one that failed."""
    failed = run_with(curve()[:5], status="failed", error="it left")
    runs = {"O1": scaled(1.001, 1.002, 0.999), "O2": scaled(1.3, 1.31, 1.29), "O3": failed}
    report = report_with(scaled(1.0, 1.0, 1.0), **runs)
    report.save(str(tmp_path / "report.json"))
    return str(tmp_path / "report.json")


@pytest.mark.parametrize(
    "results, code, told",
    [
        ("failed", 3, "failed: O3"),
        ("rejected", 3, "rejected: O2, O3"),
        ("refuted,not-shown", 3, "refuted: O2; not-shown: O3"),
        (None, 0, None),
    ],
)
def test_a_pipeline_fails_on_the_results_that_it_names(saved, capsys, results, code, told):
    arguments = ["report", saved, "--tolerance", "0.01"] + (["--fail-on", results] if results else [])
    assert main(arguments) == code
    errors = capsys.readouterr().err
    assert errors == (f"ampcompat report: --fail-on: {told}\n" if told else "")


def test_the_json_of_a_row_has_its_equivalence_and_its_speed(saved):
    report = Report.load(saved)
    report.environment["tolerance"] = 0.01
    advice.advise(report)
    rows = json.loads(report.to_json())["runs"]
    assert rows["O0"]["equivalence"] is None and rows["O0"]["speed"] == {"ratio": 1.0, "interval": [1.0, 1.0]}
    assert set(rows["O1"]["equivalence"]) == {"result", "difference", "interval", "seeds", "seeds_needed"}
    assert rows["O1"]["equivalence"]["result"] == "shown" and len(rows["O1"]["equivalence"]["interval"]) == 2
    assert rows["O1"]["speed"]["ratio"] == pytest.approx(1.0) and summarize(report)["O1"].speed == pytest.approx(1.0)


def test_a_report_with_a_damaged_tolerance_is_one_error():
    with pytest.raises(AmpValueError, match="'much' is not a share between 0 and 1"):
        report_with(environment={"tolerance": "much"}, O1=run_with(curve()))
