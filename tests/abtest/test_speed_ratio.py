"""How fast a level is, from rounds in which the levels took turns."""

import math
import random
from statistics import mean, stdev

import pytest
from test_verdict import curve, report_with, run_with

from ampcompat.abtest import Run, to_text
from ampcompat.abtest.judging.speed_ratio import speeds
from ampcompat.abtest.judging.summary import summarize

#: 97.5 % quantiles of Student's t distribution, from a table: of 2, 3 and 6 degrees of freedom.
T2, T3, T6 = 4.3027, 3.1824, 2.4469


def exact(times):
    """Return times without scatter within their runs."""
    return {level: [each and (each, 0.0) for each in row] for level, row in times.items()}


def timed(seconds):
    """Return a run of which each round has steps of these seconds, and long steps that do not count."""
    run = run_with(curve(), seconds=50.0)
    run.timings = [Run(status="stopped", step_seconds=[each] * 20) for each in seconds]
    return run


def test_of_two_levels_the_interval_is_the_paired_one_of_the_logarithms():
    base, level = [1.0, 1.1, 0.9, 1.3], [0.5, 0.6, 0.44, 0.66]
    logs = [math.log(one / other) for one, other in zip(base, level)]
    half = T3 * stdev(logs) / math.sqrt(4)
    found = speeds(exact({"O0": base, "O1": level}), "O0")["O1"]
    assert found.ratio == pytest.approx(math.exp(mean(logs)))
    assert found.interval == pytest.approx([math.exp(mean(logs) - half), math.exp(mean(logs) + half)], rel=1e-4)


def test_what_slows_down_a_whole_round_cancels_and_what_slows_down_one_run_widens_every_interval():
    rows = {"O0": [1.0] * 3, "O1": [0.5] * 3, "O2": [0.8] * 3, "O3": [2.0] * 3}
    slowed = {level: [a, 3 * b, c] for level, (a, b, c) in rows.items()}
    assert speeds(exact(slowed), "O0")["O1"].interval == pytest.approx([2.0, 2.0])
    # Of one cell that is e too high in a table of 4 by 3 the residuals are e times (3/4 or -1/4) (2/3 or -1/3).
    e = 0.3
    rows["O3"][1] *= math.exp(e)
    rest = [e * one * other for one in (3 / 4, -1 / 4, -1 / 4, -1 / 4) for other in (2 / 3, -1 / 3, -1 / 3)]
    half = T6 * math.sqrt(sum(each**2 for each in rest) / 6) * math.sqrt(2 / 3)
    found = speeds(exact(rows), "O0")
    assert found["O1"].interval == pytest.approx([2 * math.exp(-half), 2 * math.exp(half)], rel=1e-4)
    assert found["O3"].ratio == pytest.approx(0.5 * math.exp(-e / 3))


def test_a_level_that_lacks_a_round_is_compared_in_those_that_it_shares_with_the_baseline():
    rows = {"O0": [1.0, 2.0, 3.0, 5.0], "O1": [0.5, None, 1.5], "O2": [None], "O3": [1.0, 2.2, 3.0, 5.0]}
    found = speeds(exact(rows), "O0")
    assert found["O1"].ratio == 2.0 and found["O1"].interval == pytest.approx([2.0, 2.0]) and "O2" not in found
    assert found["O0"].interval == (1.0, 1.0) and found["O3"].interval[0] < 1.0
    assert speeds(exact({"O0": [1.0], "O1": [2.0]}), "O0")["O1"].interval is None
    assert speeds(exact({"O1": [2.0]}), "O0") == {} and speeds({}, "O0") == {}


def test_rounds_that_agree_by_chance_give_no_interval_narrower_than_the_scatter_of_steps():
    times = {"O0": [(1.0, 0.03)] * 3, "O1": [(0.5, 0.04)] * 3}
    half = T2 * math.sqrt((0.03**2 + 0.04**2) / 2) * math.sqrt(2 / 3)
    assert speeds(times, "O0")["O1"].interval == pytest.approx([2 * math.exp(-half), 2 * math.exp(half)], rel=1e-4)


def test_95_percent_of_the_intervals_hold_the_true_ratio():
    rng, count = random.Random(0), 0
    for _ in range(2000):
        times = {
            level: [math.exp(rng.gauss(0, 0.1)) / true for _ in range(3)] for level, true in (("O0", 1), ("O1", 1.2))
        }
        low, high = speeds(exact(times), "O0")["O1"].interval
        count += low <= 1.2 <= high
    assert 0.935 <= count / 2000 <= 0.965


def test_the_table_has_the_interval_and_a_tilde_where_the_level_may_be_as_fast():
    runs = {"O1": timed([0.5, 0.52, 0.51]), "O2": timed([0.9, 1.05, 1.0])}
    report = report_with(timed([1.0, 1.04, 1.02]), **runs)
    rows = summarize(report)
    assert rows["O1"].speed == pytest.approx(2.0) and rows["O0"].seconds / rows["O1"].seconds == pytest.approx(2.0)
    lines = {line.split()[0]: line for line in to_text(report).splitlines() if line[:1] == "O"}
    assert "\u00d7 2.00 \u00b1 " in lines["O1"] and "~ 1.04 \u00b1 " in lines["O2"] and "\u00d7 1.00 " in lines["O0"]
    assert report.advice.startswith("Take O1: ")
    assert report.runs["O1"].speed.interval == rows["O1"].interval and report.runs["O0"].speed.ratio == 1.0


def test_beyond_20_percent_a_speed_is_not_a_number_and_no_level_is_advised_for_it():
    report = report_with(timed([1.0, 1.1, 1.0]), O1=timed([0.5, 1.0, 0.7]))
    assert summarize(report)["O1"].speed is None and report.runs["O1"].speed.interval is not None
    assert "not measurable here" in to_text(report)
    assert report.advice.startswith("Accepted: O1.\nWhich is fastest is not known")


def test_columns_that_need_it_are_explained_below_the_table():
    report = report_with(timed([1.0, 1.04, 1.02]), O1=timed([0.9, 1.05, 1.0]))
    text = to_text(report)
    assert "\n~: as fast as the baseline, within the scatter of step times.\n" in text
    assert "\nto target: time until the smoothed loss is within 1 % of the baseline's final one.\n" in text
    assert "peak" not in text
    assert "to target: " not in to_text(report, width=60)
    for run, size in zip(report.runs.values(), (2**20, 2**19)):
        run.memory.parameters = run.memory.peak_total = size
    assert "O0 and O1 end alike, and both were applied: weights take 1 MiB at O0, 512 KiB at O1." in " ".join(
        to_text(report).split()
    )


def test_short_runs_are_not_compared_with_long_ones():
    """The series was interrupted in its first round, after the baseline's short run."""
    report = report_with(timed([1.0]), O1=run_with(curve(), 0.5), O2=timed([0.5]))
    rows = summarize(report)
    assert rows["O1"].speed is None and rows["O2"].speed == pytest.approx(2.0) and rows["O1"].seconds == 0.5


@pytest.mark.parametrize("drifted", [False, True])
def test_a_baseline_that_drifts_between_rounds_is_mentioned(drifted):
    report = report_with(timed([1.0, 1.5 if drifted else 1.1, 1.0]), O1=timed([0.5, 0.55, 0.5]))
    told = "O0 took 1000 to 1500 ms a step in 3 rounds: other work ran on the machine."
    assert (told in report.advice) == drifted


def test_where_half_precision_is_emulated_no_level_is_advised_by_its_speed():
    runs = {"O0": timed([1.0] * 3), "O1": timed([0.5] * 3), "O2": timed([2.0] * 3)}
    for run, size in zip(runs.values(), (100, 100, 50)):
        run.memory.peak_total = size * 2**20
    environment = {"device": "cpu (threads: 2, float16 emulated in float32)"}
    report = report_with(runs.pop("O0"), environment=environment, **runs)
    text = " ".join(to_text(report).split())
    assert "speed*" in text and "* on a CPU that emulates half precision: this says nothing about a GPU." in text
    assert report.advice.splitlines()[:3] == [
        "Accepted: O1, O2.",
        "If memory is short: O2, 50 % less memory.",
        "To see which is fastest, run this on a GPU: this CPU emulates half precision.",
    ]
