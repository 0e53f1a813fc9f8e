"""Time to target: when a level reaches the baseline's final loss, or a loss or metric that is given."""

import math
from bisect import insort
from statistics import median

import pytest
from test_verdict import report_with, run_with, seeds_of

from ampcompat.abtest import to_text
from ampcompat.abtest.judging import time_to_target
from ampcompat.abtest.judging.summary import summarize
from ampcompat.errors import AmpValueError


def falling(steps=100, speed=1.0, low=1.0):
    """Return losses that fall in a straight line from 11 to ``low`` and stay there; at speed 1 in 80 steps."""
    return [max(low, 11 - 10 * speed * step / 80) for step in range(steps)]


def by_hand(losses, value, width):
    """Return the number of steps until the median of the last ``width`` losses is at most ``value``."""
    window = sorted(losses[:width])
    for end in range(width, len(losses) + 1):
        if median(window) <= value:
            return end
        window.remove(losses[end - width])
        insort(window, losses[end])


def found(report, level="O1"):
    return summarize(report)[level].to_target


def test_the_target_is_the_baselines_end_within_one_percent():
    baseline = seeds_of(run_with(falling(), 2.0, samples=[32] * 100), run_with(falling()))
    report = report_with(baseline, O1=run_with(falling(speed=2.0), 0.5, samples=[32] * 100))
    steps = by_hand(falling(speed=2.0), 1.01, 10)
    assert (found(report).steps, found(report).samples, found(report).seconds) == ([steps], [32 * steps], [steps * 0.5])
    assert found(report, "O0").steps == [by_hand(falling(), 1.01, 10)]  # of the seed that O1 was run with


@pytest.mark.parametrize(
    "target, told", [(None, "loss is within 1 % of the baseline's final one"), ("loss=2", "loss reaches 2")]
)
@pytest.mark.parametrize("seconds, unit", [(1.0, "time"), (None, "steps")])
def test_below_the_table_a_sentence_says_what_the_column_has(target, told, seconds, unit):
    report = report_with(run_with(falling()), environment={"target": target}, O1=run_with(falling()))
    summary = summarize(report)
    for row in summary.values():
        row.to_target.seconds = [seconds] * len(row.to_target.steps) if seconds else []
    text = to_text(report, summary=summary)
    assert f"\nto target: {unit} until the smoothed {told}.\n" in text and (" steps " in text) == (unit == "steps")


@pytest.mark.parametrize("end, is_reached", [(1.009, True), (1.02, False)])
def test_a_level_that_ends_above_it_does_not_reach_it(end, is_reached):
    report = report_with(seeds_of(run_with(falling()), run_with(falling())), O1=run_with(falling(low=end)))
    assert found(report).is_reached == is_reached and ("not reached" in to_text(report)) != is_reached


@pytest.mark.parametrize("given", [None, "loss=2.95"])
def test_a_level_that_ends_below_it_has_reached_it_at_its_last_step(given):
    """The table's end of a level is the baseline's plus the median difference, not the median of its own losses."""
    before = falling(20, low=8.0)
    baseline, level = before + [1.0, 2.0, 3.0, 4.0, 5.0], before + [1.5, 1.9, 3.5, 3.9, 4.9]
    report = report_with(run_with(baseline), environment={"target": given}, O1=run_with(level))
    assert summarize(report)["O1"].losses[0].end == pytest.approx(2.9)
    assert found(report).steps == [25] and found(report).is_reached


def test_an_interrupted_run_has_not_reached_the_baselines_end():
    """Its windows are compared with the baseline's of the same steps, not with where that ends."""
    baseline = seeds_of(run_with(falling()), run_with(falling()))
    stopped = run_with(falling()[:60], status="interrupted")
    given = {None: [], "loss=5": [by_hand(falling(), 5, 10)], "loss=1": []}
    for value, steps in given.items():
        report = report_with(baseline, environment={"target": value}, O1=stopped)
        assert found(report).steps == steps and found(report).is_reached == bool(steps)


def test_a_level_that_ends_above_the_baselines_end_has_not_reached_it_by_an_earlier_dip():
    """The table would have +5 % beside "reached"."""
    level = [value * (0.98 if 80 <= step < 92 else 1.05) for step, value in enumerate(falling())]
    report = report_with(run_with(falling()), O1=run_with(level))
    assert summarize(report)["O1"].losses[0].difference == pytest.approx(0.05) and not found(report).is_reached
    report.environment["target"] = "loss=1.01"  # a value that is given counts where it is reached first
    assert found(report).is_reached


def test_of_several_losses_the_first_that_falls_is_the_target():
    baseline, level = run_with([5.0 - value / 3 for value in falling()]), run_with([5 - each / 3 for each in falling()])
    for run in (baseline, level):
        run.loss += [(step, 1, value) for step, value in enumerate(falling())]
    report = report_with(baseline, O1=level)
    assert found(report).steps == [by_hand(falling(), 1.01, 10)]
    assert time_to_target.describe(report) == "the baseline's final loss 1"


def test_one_lucky_batch_does_not_reach_it_and_skipped_steps_count_as_steps():
    losses = falling()
    lucky = losses[:20] + [0.0] + losses[21:]
    levels = {"O1": run_with(lucky), "O2": run_with([11.0] * 3 + losses[:97], skipped=range(3))}
    report = report_with(run_with(losses), environment={"target": "loss=2"}, **levels)
    assert found(report).steps == [by_hand(losses, 2, 10)] and found(report, "O2").steps == [by_hand(losses, 2, 10) + 3]


@pytest.mark.parametrize("name, begin, end", [("accuracy", 0.1, 0.95), ("perplexity", 90.0, 12.0)])
def test_a_metric_is_reached_from_the_side_on_which_the_baseline_begins(name, begin, end):
    points = [(10 * epoch, begin + (end - begin) * epoch / 9) for epoch in range(10)]
    runs = [run_with(falling(), metrics={name: points}) for _ in range(2)]
    report = report_with(runs[0], environment={"target": f"{name}={points[6][1]}"}, O1=runs[1])
    assert found(report).steps == [61] and found(report).is_reached


def test_over_seeds_it_is_the_median_and_the_range_and_how_many_reached_it():
    baseline = seeds_of(*[run_with(falling(), 2.0) for _ in range(3)])
    level = seeds_of(*[run_with(losses, 2.0) for losses in (falling(), falling(speed=2.0), [11.0] * 100)])
    report = report_with(baseline, O1=level)
    first, second = by_hand(falling(), 1.01, 10), by_hand(falling(speed=2.0), 1.01, 10)
    assert (found(report).steps, found(report).seeds, found(report).is_reached) == ([first, second], 3, True)
    middle = f"{(first + second) / 2:.4g} ({second} to {first})"
    assert "2 of 3 seeds" in to_text(report, details=True) and middle in to_text(report, details=True)


def test_of_the_accepted_levels_the_first_at_the_target_is_recommended():
    """O2 has the faster steps, O1 needs fewer of them."""
    levels = {"O1": run_with(falling(speed=1.6), 0.9), "O2": run_with(falling(), 0.7)}
    baseline = seeds_of(run_with(falling(), 1.0), run_with(falling(speed=0.9), 1.0))
    report = report_with(baseline, environment={"target": "loss=2"}, **levels)
    assert report.advice.startswith("Take O1: the first to reach loss = 2 (45.9 s; O0: 78 s)")


def test_where_nothing_reaches_it_step_times_decide_and_that_is_said():
    baseline = run_with(falling(), metrics={"accuracy": [(99, 0.1)]})
    report = report_with(baseline, environment={"target": "accuracy=0.9"}, O1=run_with(falling(), 0.5))
    assert "No level reached the target, accuracy = 0.9." in report.advice.splitlines()


def test_a_target_that_was_never_logged_is_unknown_and_the_names_that_are_known_are_listed():
    report = report_with(environment={"target": "nosuch=0.9"}, O1=run_with(falling(), 0.5))
    assert found(report) is None and "not reached" not in to_text(report)
    assert "No metric 'nosuch' was logged; known: loss." in report.advice.splitlines()


def test_long_series_are_smoothed_by_the_same_measure():
    losses = [value + 0.3 * math.sin(7.0 * step) for step, value in enumerate(falling(20000, 1 / 200))]
    report = report_with(run_with(losses), environment={"target": "loss=3"}, O1=run_with(losses))
    assert found(report).steps[0] == pytest.approx(by_hand(losses, 3, 2000), rel=0.01)


@pytest.mark.parametrize("text", ["", "loss", "loss=", "=1", "loss=low", "loss=nan", "loss=inf"])
def test_a_target_that_cannot_be_read_is_an_error(text):
    with pytest.raises(AmpValueError, match="NAME=NUMBER, such as loss=0.3"):
        time_to_target.parse(text)
