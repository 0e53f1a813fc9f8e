"""Results and recommendations for constructed runs."""

import math

import pytest

from ampcompat.abtest import Memory, Report, Run, recommendation, to_text


def run_with(losses, seconds=1.0, status="ok", skipped=(), peak=None, **others):
    return Run(
        status=status,
        loss=[(step, 0, value) for step, value in enumerate(losses)],
        step_seconds=[seconds] * len(losses),
        skipped=list(skipped),
        memory=Memory(peak_total=peak),
        **others,
    )


#: Losses without scatter, so that 5 % are allowed.
FLAT = [1.0] * 100


def recommended(**runs):
    report = Report(baseline="O0", runs=dict({"O0": run_with(FLAT, peak=1000)}, **runs))
    recommendation.recommend(report)
    return report


def test_the_fastest_level_within_noise_is_recommended_with_what_it_saves():
    report = recommended(
        O1=run_with([1.01] * 100, seconds=0.5, peak=800),
        O2=run_with([1.02] * 100, seconds=0.25, peak=600),
        O3=run_with([1.2] * 100, seconds=0.1),
    )
    assert report.advice == (
        "Take O2: the fastest level within noise, 4.00 times the speed of O0, saves 400 B (40 %) of peak memory."
    )
    assert report.runs["O0"].verdict == "baseline; takes 4.00 times the time of O2"
    assert report.runs["O1"].verdict == (
        "within noise (1 % away on average, 5 % allowed); takes 2.00 times the time of O2, saves 200 B (20 %) of peak "
        "memory"
    )
    assert report.runs["O2"].verdict == "within noise (2 % away on average, 5 % allowed), recommended"
    assert report.runs["O3"].verdict == (
        "rejected: its loss is 20 % away from the baseline's on average (it ends at 1.2, the baseline at 1), "
        "beyond the 5 % that a single run allows"
    )


def test_of_equally_fast_levels_the_one_with_less_memory_is_recommended():
    report = recommended(O1=run_with(FLAT, seconds=0.5, peak=900), O2=run_with(FLAT, seconds=0.51, peak=500))
    assert report.advice.startswith("Take O2")
    assert report.runs["O1"].verdict.endswith("as fast as O2, with 400 B more peak memory")


def test_where_nothing_is_faster_the_baseline_is_recommended():
    report = recommended(O1=run_with(FLAT, seconds=2.0))
    assert report.advice == "Take O0: no other level that stays within noise is faster here."
    report = recommended(O1=run_with(FLAT, seconds=2.0, peak=900), O2=run_with(FLAT, seconds=3.0, peak=250))
    assert report.advice.endswith("Where memory is short, O2 saves 750 B (75 %) of peak memory at 3.00 times the time.")


def test_measured_noise_allows_more_or_less_than_a_single_run():
    near, far = [1.03] * 100, [1.3] * 100
    quiet = recommended(O0=run_with(FLAT, repeats=[run_with([1.001] * 100)]), O1=run_with(near, 0.5))
    assert "beyond the noise of 2 seeds, 1 %" in quiet.runs["O1"].verdict
    noisy = recommended(O0=run_with(FLAT, repeats=[run_with([1.5] * 100)]), O1=run_with(far, 0.5))
    assert noisy.runs["O1"].verdict.startswith("within noise (30 % away on average, 33 % allowed)")


@pytest.mark.parametrize(
    "run, says",
    [
        (run_with([1.0] * 50 + [math.nan] * 50), "its loss is nan from step 50 on"),
        (run_with([1.0] * 97 + [math.inf] * 3), "its loss is inf from step 97 on"),
        (run_with(FLAT, skipped=range(20, 40)), "20 of its 100 steps were skipped, the last at step 39"),
        (run_with(FLAT[:5], skipped=range(5)), "every one of its 5 steps was skipped"),
        (run_with(FLAT[:5], status="failed", error="ValueError: no"), "failed: ValueError: no"),
        (run_with([], status="failed", error="it left"), "failed: it left"),
    ],
)
def test_each_rejected_level_says_why(run, says):
    report = recommended(O1=run)
    assert says in report.runs["O1"].verdict
    assert report.advice.startswith("Take O0")


def test_a_few_skips_and_one_nan_do_not_reject_a_level():
    losses = list(FLAT)
    losses[3] = math.nan
    report = recommended(O1=run_with(FLAT, 0.5, skipped=[0, 1, 2, 60]), O2=run_with(losses, 0.6))
    assert report.advice.startswith("Take O1")


@pytest.mark.parametrize(
    "baseline, says",
    [
        (run_with([math.nan] * 100), "its loss is nan from step 0 on"),
        (run_with([], status="failed", error="it left"), "recorded no steps to compare with"),
        (run_with(FLAT[:4], status="failed", error="it left"), "the baseline O0 failed"),
    ],
)
def test_without_a_working_baseline_there_is_no_advice(baseline, says):
    report = recommended(O0=baseline, O1=run_with(FLAT))
    assert report.advice.startswith("No advice: ") and says in report.advice


def test_a_report_without_its_baseline_gets_verdicts_without_advice():
    report = Report(baseline="O0", runs={"O1": run_with(FLAT)})
    recommendation.recommend(report)
    assert "no baseline" in report.runs["O1"].verdict and "No advice" in report.advice
    assert "O1" in to_text(report)


def test_widely_varying_times_are_mentioned():
    run = run_with(FLAT[:8])
    run.step_seconds = [1.0] + [1.0, 2.0] * 3 + [1.0]
    report = recommended(O1=run)
    assert report.advice.splitlines()[-1].startswith("Step times of O1 vary widely")
    assert len(recommended(O1=run_with(FLAT)).advice.splitlines()) == 1


def test_the_first_step_and_measured_steps_do_not_count_for_time():
    run = run_with(FLAT[:4])
    run.step_seconds = [60.0, 1.0, 3.0, 2.0]
    assert recommendation.seconds_per_step(run) == 2.0
    assert recommendation.seconds_per_step(run_with(FLAT[:1], seconds=7.0)) == 7.0
    run.measured = [2]
    assert recommendation.seconds_per_step(run) == 1.5
