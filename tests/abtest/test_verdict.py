"""Verdicts and advice for constructed runs whose truth is known."""

import math
import random
import re

import pytest

from ampcompat.abtest import Memory, Report, Run, row_names, to_text
from ampcompat.abtest.judging import advice, curves
from ampcompat.abtest.judging.level_differences import t_quantile
from ampcompat.abtest.judging.summary import summarize
from ampcompat.abtest.judging.verdict import ACCEPTED, NOT_JUDGED, REJECTED, judge, judge_backwards
from ampcompat.abtest.number_format import number
from ampcompat.abtest.report_data import Finding


def run_with(losses, seconds=1.0, status="ok", skipped=(), peak=None, **others):
    return Run(
        status=status,
        loss=[(step, 0, value) for step, value in enumerate(losses)],
        step_seconds=[seconds] * len(losses),
        skipped=list(skipped),
        memory=Memory(peak_total=peak and peak * 2**20),
        **others,
    )


def curve(seed=0, factor=1.0, steps=100, scatter=0.05):
    """Return losses that fall from 2 to about 0.1; equal seeds give equal batches."""
    rng = random.Random(seed)
    return [factor * (2 * math.exp(-step / 15) + 0.1) * math.exp(rng.gauss(0, scatter)) for step in range(steps)]


def seeds_of(*runs):
    """Return the first of these runs, with the others as its further seeds."""
    runs[0].repeats = list(runs[1:])
    return runs[0]


def report_with(baseline=None, control=True, environment=(), **runs):
    """Return a report that was judged; its baseline has a second seed, 1 % apart, unless it has some of its own."""
    baseline = baseline or run_with(curve(), peak=1000)
    if control and not baseline.repeats:
        baseline.repeats = [run_with(curve(1, 1.01))]
    report = Report(environment=dict(environment), baseline="O0", runs=dict({"O0": baseline}, **runs))
    advice.advise(report)
    return report


def kind_of(run, **options):
    return judge(report_with(O1=run, **options))["O1"].kind


# -- what is accepted, rejected, not judged ----------------------------------------------------------------------------


def test_a_level_within_the_seeds_variation_is_accepted():
    found = judge(report_with(O1=run_with(curve(0, 1.004))))["O1"]
    assert found.kind == ACCEPTED and found.end.signed == pytest.approx(0.004, rel=1e-6)


NEVER_LEARNS = [2.1 * own / fallen for own, fallen in zip(curve(), curve(scatter=0.0))]
KINDS = {
    "it never learns, in spite of one bad batch": (REJECTED, NEVER_LEARNS[:60] + [1e9] + NEVER_LEARNS[61:], ()),
    "skips at the start only delay it": (ACCEPTED, [curve()[0]] * 3 + curve(steps=97), (0, 1, 2)),
    "one spike at the end": (ACCEPTED, curve()[:-2] + [1e6] + curve()[-1:], ()),
    "nan at a skipped step": (ACCEPTED, curve()[:-1] + [math.nan], (99,)),
    "nan at the last step": (REJECTED, curve()[:-1] + [math.nan], ()),
    "a difference that shrinks": (ACCEPTED, [loss * (1.05 - 0.04 * n / 100) for n, loss in enumerate(curve())], ()),
    "a loss that is lower": (ACCEPTED, [loss * (1 - 0.017 * (n / 100) ** 2) for n, loss in enumerate(curve())], ()),
    "a lower loss from the second step on": (ACCEPTED, curve()[:1] + curve(0, 0.5)[1:], ()),
}


@pytest.mark.parametrize("kind, losses, skipped", KINDS.values(), ids=KINDS)
def test_a_level_is_accepted_or_rejected(kind, losses, skipped):
    assert kind_of(run_with(losses, skipped=skipped)) == kind


def test_without_a_control_the_difference_is_told_and_not_judged():
    found = judge(report_with(control=False, O1=run_with(curve(0, 1.004))))["O1"]
    assert found.kind == NOT_JUDGED and found.end.variation is None and "without a control" in found.text


def test_of_two_losses_a_lower_one_is_a_fault():
    runs = [run_with(curve()), run_with(curve(1, 1.01)), run_with(curve()[:1] + curve(0, 0.5)[1:])]
    for run in runs:
        run.loss += [(step, 1, 3.0) for step in range(100)]
    assert kind_of(runs[2], baseline=seeds_of(*runs[:2])) == REJECTED


def test_three_seeds_give_a_confidence_interval():
    def level(factors):
        return seeds_of(*[run_with(curve(seed, factor)) for seed, factor in enumerate(factors)])

    steady = kind_of(level([1.05, 1.051, 1.049]), baseline=level([1.0, 1.0, 1.0]))
    scattered = kind_of(level([1.05, 0.97, 0.99]), baseline=level([1.0, 1.0, 1.0]))
    assert (steady, scattered) == (REJECTED, ACCEPTED)
    assert t_quantile(2) == 4.303 and t_quantile(100) == pytest.approx(1.984, abs=2e-3)


@pytest.mark.parametrize("power, kind", [(2, NOT_JUDGED), (0, ACCEPTED)])
def test_a_difference_that_is_allowed_is_not_accepted_while_it_grows(power, kind):
    behind = [loss * (1 + 0.017 * (step / 100) ** power) for step, loss in enumerate(curve())]
    found = judge(report_with(O1=run_with(behind)))["O1"]
    assert found.kind == kind and found.end.value < 0.02
    assert ("and it grows: over 2 % in twice as many steps" in found.text) == bool(power)


@pytest.mark.parametrize(
    "run, says",
    [
        (run_with(curve()[:50] + [math.nan] * 50), "its loss is nan from step 50 on"),
        (run_with(curve()[:97] + [math.inf] * 3), "its loss is inf from step 97 on"),
        (run_with(curve(), skipped=range(20, 40)), "20 of its 100 steps were skipped, the last at step 39"),
        (run_with(curve()[:5], skipped=range(5)), "every one of its 5 steps was skipped"),
        (run_with(curve()[:5], status="failed", error="ValueError: no"), "failed: ValueError: no"),
        (run_with([], status="failed", error="it left"), "failed: it left"),
    ],
)
def test_each_level_that_is_rejected_outright_says_why(run, says):
    report = report_with(O1=run)
    assert says in report.runs["O1"].verdict and report.runs["O1"].verdict.startswith("rejected")
    assert report.advice.startswith("Take O0")


@pytest.mark.parametrize(
    "run, says",
    [
        (run_with(curve()[:12]), "12 updates are too few"),
        (run_with(curve(7, 3.0)), "runs saw different data: with equal seeds the first loss is"),
        (run_with(curve()[:60], status="interrupted"), "interrupted after 60 steps"),
    ],
)
def test_what_cannot_be_judged_says_why(run, says):
    found = judge(report_with(O1=run))["O1"]
    assert found.kind == NOT_JUDGED and says in found.text


@pytest.mark.parametrize(
    "loaded, inputs, are_same",
    [
        ([3, 1, 0], [0, 0, 0], True),
        ([0, 0, 0], [3, 1, 2], True),
        ([3, 1, 0], [3, 1, 2], True),
        ([3, 1, 0], [9, 1, 2], False),  # as where a level computes what a model is called with
        ([0, 0, 0], [7, 7, 7], False),  # as of a constant grid of coordinates, whatever the targets are
        ([], [], False),
    ],
)
def test_runs_with_equal_batches_are_judged_however_much_the_level_rounds_the_first_losses(loaded, inputs, are_same):
    constant = inputs == [7, 7, 7]
    data = {"loaded": [3, 1, 0] if any(loaded) else [0, 0, 0], "inputs": inputs if constant else [3, 1, 2]}
    baseline = run_with(curve(), **(data if loaded else {}))
    rounded = [1.1 * value for value in curve()[:20]] + curve()[20:]
    found = judge(report_with(baseline, O5=run_with(rounded, loaded=loaded, inputs=inputs)))["O5"]
    assert (found.kind == ACCEPTED) is are_same and ("different data" in found.text) is not are_same


def test_runs_with_other_data_are_not_judged_though_they_fall_alike_at_first():
    """One large fall dominates a correlation of values, though the batches have nothing in common."""
    fallen = [[10.0] + [value / 2 for value in curve(seed)] for seed in (0, 5)]
    found = judge(report_with(run_with(fallen[0]), O1=run_with(fallen[1])))["O1"]
    assert found.kind == NOT_JUDGED and "runs saw different data" in found.text


def test_runs_whose_first_losses_agree_saw_the_same_data_though_they_part_after_a_skipped_step():
    """A rough training goes another way from the step on that one of the two left out."""
    rough = [curve(seed, steps=25, scatter=0.6) for seed in (0, 1, 2)]
    level = [value * 1.0001 for value in rough[0][:3]] + rough[2][3:]
    baseline = seeds_of(run_with(rough[0]), run_with(rough[1]))
    assert "different data" not in judge(report_with(baseline, O1=run_with(level, skipped=[2])))["O1"].text


def test_runs_with_other_data_are_not_judged_though_their_first_losses_agree_and_two_that_differ_are_quoted():
    base, other = curve(0), curve(0)[:1] + curve(5, 1.001)[1:]
    found = judge(report_with(O1=run_with(other)))["O1"]
    assert found.kind == NOT_JUDGED
    told = r"runs saw different data: with equal seeds the loss of step (\d+) is (\S+), the baseline's ([^;]+);"
    step, own, reference = re.match(told, found.text).groups()
    assert [own, reference] == [number(other[int(step)]), number(base[int(step)])]
    assert float(own) != pytest.approx(float(reference), rel=0.05)


def test_runs_that_part_after_a_skipped_first_step_are_said_to_do_so():
    rough = [curve(seed, steps=25, scatter=0.6) for seed in (0, 2)]
    found = judge(report_with(run_with(rough[0]), O1=run_with(rough[0][:1] + rough[1][1:], skipped=[0])))["O1"]
    assert found.kind == NOT_JUDGED and "runs part after step 0, which was skipped" in found.text
    assert "different data" not in found.text


def test_losses_without_the_scatter_of_batches_need_not_move_together():
    flat = [run_with([value + 1.0 for value in curve(seed, 0.001, scatter=0.5)]) for seed in (0, 1, 2)]
    assert kind_of(flat[2], baseline=seeds_of(*flat[:2])) == ACCEPTED


def test_a_level_that_alone_starts_elsewhere_computes_differently():
    report = report_with(O1=run_with(curve()), O2=run_with(curve(0, 1.5)))
    assert judge(report)["O2"].kind == REJECTED


@pytest.mark.parametrize(
    "baseline, says",
    [
        (run_with([math.nan] * 100), "its loss is nan from step 0 on"),
        (run_with([], status="failed", error="it left"), "the baseline O0 failed, so that"),
        (run_with(curve()[:4], status="failed", error="it left"), "the baseline O0 failed, so that"),
        (run_with([0.01 * math.exp(step / 10) for step in range(100)]), "its own loss diverges, from 0.0"),
        (run_with(curve()[:60], status="interrupted"), "the baseline was interrupted after 60 steps"),
    ],
)
def test_without_a_working_baseline_no_level_is_judged(baseline, says):
    report = report_with(baseline, O1=run_with(curve()))
    assert judge(report)["O1"].kind == NOT_JUDGED
    assert report.advice.startswith("No advice: ") and says in report.advice


def rising(seed=0, factor=1.0, slope=3.0, steps=100):
    """Return losses that rise by design, as a curriculum's do, from 1 to 1 + ``slope``."""
    rng = random.Random(seed)
    return [factor * (1 + slope * step / steps) * math.exp(rng.gauss(0, 0.05)) for step in range(steps)]


@pytest.mark.parametrize("slope, kind", [(3.0, ACCEPTED), (3.6, REJECTED), (1.5, REJECTED)])
def test_where_the_loss_rises_by_design_it_is_judged_whether_levels_train_alike(slope, kind):
    report = report_with(seeds_of(run_with(rising()), run_with(rising(1))), O1=run_with(rising(0, 1.002, slope)))
    found = judge(report)["O1"]
    assert found.kind == kind and found.text.endswith("what was judged is whether it trains alike, not its progress")
    assert "to_target" not in to_text(report) and summarize(report)["O1"].to_target is None
    assert "trains alike, not its progress" in " ".join(to_text(report).split())


def noisy(own, seed=0, steps=380, scatter=0.8, level=0.0785, skips=0):
    """Return losses of single samples, whose scatter each run has for itself in part, as rounding moves them all."""
    batches, rng = random.Random(seed), random.Random(f"{own} {seed}")
    found = []
    for step in range(steps):
        value = (2 * math.exp(-max(0, step - skips) / 25) + level) * math.exp(batches.gauss(0, scatter))
        found.append(value * math.exp(rng.gauss(0, 0.2 * min(1.0, step / 50))))
    return found


def test_a_difference_within_the_scatter_of_the_losses_is_accepted_where_it_is_well_known():
    kinds = []
    for index in range(40):
        baseline = seeds_of(run_with(noisy("O0", index)), run_with(noisy("O0", 1000 + index)))
        report = report_with(baseline, O1=run_with(noisy("O1", index, skips=2), skipped=[0, 1]))
        kinds.append(judge(report)["O1"].kind)
    assert kinds.count(REJECTED) == 0 and kinds.count(NOT_JUDGED) <= 4


def test_where_losses_scatter_too_much_what_is_missing_is_said():
    """Windows of five losses that each scatter by 80 % cannot show 20 %."""
    baseline = seeds_of(run_with(noisy("O0", 3, steps=50)), run_with(noisy("O0", 4, steps=50)))
    level = [value * (1.0 if step < 25 else 1.6 if step % 2 else 0.8) for step, value in enumerate(noisy("O0", 3, 50))]
    text = judge(report_with(baseline, O1=run_with(level)))["O1"].text
    assert "because losses scatter" in text and "more --repeats" not in text


def test_only_the_losses_that_stay_nan_are_named():
    """One of three is nan from step 3 on; another once, at a skipped step."""
    run = run_with(curve(), skipped=[5])
    run.loss += [(step, 1, math.nan if step == 5 else 1.0) for step in range(100)]
    run.loss += [(step, 2, math.nan) for step in range(3, 100)]
    assert judge(report_with(O3=run))["O3"].text == "its loss 2 is nan from step 3 on"


def test_an_interrupted_repeat_does_not_count_for_the_difference():
    """Where it was stopped its loss is still twice as high as at its end."""
    stopped = [value * (1.01 if step < 9 else 2) for step, value in enumerate(curve(1)[:40])]
    level = seeds_of(run_with(curve()), run_with(stopped, status="interrupted"))
    found = judge(report_with(O1=level))["O1"]
    assert found.kind == ACCEPTED and found.end.signed == 0.0


def test_an_interrupted_run_is_said_to_be_so_once():
    text = to_text(report_with(O1=run_with(curve()[:60], status="interrupted", error="interrupted")))
    assert "interrupted" in text and "O1: interrupted: " not in text


def test_an_interrupted_seed_does_not_widen_the_range_over_seeds():
    baseline = seeds_of(run_with(curve()), run_with(curve(1, 1.01)), run_with(curve(2)[:30], status="interrupted"))
    spread = summarize(report_with(baseline))["O0"].losses[0].spread
    baseline.repeats.pop()
    assert spread == summarize(report_with(baseline))["O0"].losses[0].spread


def logged(name, last, factor=1.0):
    """Return a run that logs a metric, which grows to a value."""
    return run_with(curve(0, factor), metrics={name: [(step, last * step / 100) for step in range(100)]})


@pytest.mark.parametrize(
    "name, lower, higher",
    [
        ("accuracy", REJECTED, ACCEPTED),
        ("val/acc1", REJECTED, ACCEPTED),
        ("eval_mIoU", REJECTED, ACCEPTED),
        ("test/bleu-4", REJECTED, ACCEPTED),
        ("episodic_return", REJECTED, ACCEPTED),
        ("trainAcc", REJECTED, ACCEPTED),
        ("rougeL", REJECTED, ACCEPTED),
        ("val_loss", ACCEPTED, REJECTED),
        ("valLoss", ACCEPTED, REJECTED),
        ("Loss/validation", ACCEPTED, REJECTED),
        ("validation perplexity", ACCEPTED, REJECTED),
        ("error rate", ACCEPTED, REJECTED),
        ("grad_norm", ACCEPTED, ACCEPTED),
        ("loss_scale", ACCEPTED, ACCEPTED),
        ("reward_std", ACCEPTED, ACCEPTED),
        ("rewards/rejected", ACCEPTED, ACCEPTED),
        ("lr/loss_head", ACCEPTED, ACCEPTED),
        ("time/epoch", ACCEPTED, ACCEPTED),
        ("learning_rate", ACCEPTED, ACCEPTED),
    ],
)
def test_a_metric_counts_in_the_direction_that_is_worse_if_its_name_says_which(name, lower, higher):
    baseline, levels = seeds_of(logged(name, 0.9), logged(name, 0.91)), {"O1": 0.5, "O2": 1.5, "O4": 0.901}
    found = judge(report_with(baseline, **{level: logged(name, last) for level, last in levels.items()}))
    assert [found[level].kind for level in ("O1", "O2", "O4")] == [lower, higher, ACCEPTED]
    assert all(name in each.text for each in found.values() if each.kind == REJECTED)
    assert found["O1"].ends["metric", name].signed == pytest.approx(-0.4 / 0.9, rel=0.1)


def test_a_baseline_of_few_losses_is_not_judged_backwards_by_metrics_alone():
    def half():
        norms = {"grad_norm": [(step, 1.0) for step in range(8)]}
        return run_with(curve(steps=4), metrics=norms)

    assert judge_backwards(report_with(seeds_of(half(), half()), O1=half()), "O1").kind == NOT_JUDGED


@pytest.mark.parametrize("factor, kind", [(0.9, ACCEPTED), (1.1, REJECTED)])
def test_a_lower_loss_is_no_fault_though_something_is_logged_as_well(factor, kind):
    level = logged("grad_norm", 3.0)
    level.loss = run_with(curve()[:1] + curve(0, factor)[1:]).loss
    assert kind_of(level, baseline=seeds_of(logged("grad_norm", 1.0), logged("grad_norm", 5.0, 1.01))) == kind


def test_a_level_whose_loss_is_nan_ends_at_nan_and_the_table_says_since_when():
    report = report_with(O3=run_with([2.0] + [math.nan] * 99))
    assert math.isnan(summarize(report)["O3"].losses[0].end)
    lines = to_text(report).splitlines()
    (row,) = [line for line in lines if line.startswith("O3 ")]
    assert "nan" in row and "O3: its loss is nan from step 1 on" in lines
    assert not [line for line in lines if "O3: rejected: " in line]


@pytest.mark.parametrize(
    "run, says",
    [
        (run_with([math.nan] * 4, findings=[Finding(0, "inf in layer up.")]), "step 0, O2: inf in layer up."),
        (run_with(curve()[:4], skipped=range(4), findings=[Finding(0, "inf in up.")]), "step 0, O2: inf in up."),
        (run_with([math.nan] * 4), "O2: `ampcompat forecast t.py --lr 1` finds the layers that must stay float32."),
    ],
)
def test_of_few_steps_too_the_report_names_the_layer_or_the_command_that_finds_it(run, says):
    report = report_with(run_with(curve()[:4]), environment={"script": "t.py --lr 1"}, O2=run)
    assert says in to_text(report).splitlines()


# -- advice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "o1, o2, says",
    [
        (
            dict(seconds=0.5, peak=800),
            dict(seconds=0.25, peak=600),
            "Take O2: the first to reach the baseline's final loss (24.2 s; O0: 97 s), 4.00 times the speed, "
            "40 % less memory.",
        ),
        (dict(seconds=0.5, peak=900), dict(seconds=0.51, peak=500), "Take O2"),
        (
            dict(seconds=2.0, peak=900),
            dict(seconds=4.0, peak=250),
            "Take O0: no accepted level reaches the baseline's final loss earlier.\nAccepted: O1, O2.\n"
            "If memory is short: O2, 75 % less memory.",
        ),
    ],
    ids=["the fastest", "of equally fast ones that with less memory", "none is faster than the baseline"],
)
def test_a_level_is_recommended_with_what_it_saves(o1, o2, says):
    assert report_with(O1=run_with(curve(), **o1), O2=run_with(curve(), **o2)).advice.startswith(says)


@pytest.mark.parametrize("unit, peak, is_told", [(2**20, 960, False), (2**20, 940, True), (100, 900, False)])
def test_memory_that_differs_by_less_than_five_percent_or_a_mebibyte_is_not_advice(unit, peak, is_told):
    baseline, level = run_with(curve()), run_with(curve(), seconds=2.0)
    baseline.memory.peak_total, level.memory.peak_total = 1000 * unit, peak * unit
    assert ("memory" in report_with(baseline, O1=level).advice) == is_told


def hooked():
    """Return a run of 30 steps of which only few are undisturbed."""
    return run_with(curve(steps=30), 4.0, watched=[0, 1, 2, 3, 4, 5] + list(range(16, 26)))


def test_of_fewer_than_ten_undisturbed_steps_no_speed_is_given_nor_advised():
    """A row of plain torch has no hooks that slow its steps down, other rows have them in the first steps."""
    second = run_with(curve(1, 1.01, steps=30), 4.0, watched=range(30))
    report = report_with(seeds_of(hooked(), second), plain=run_with(curve(steps=30), 1.0))
    row = summarize(report)["O0"]
    assert (row.seconds, row.speed, summarize(report)["plain"].speed, row.to_target.median_seconds) == (None,) * 4
    assert "Of O0, fewer than 10 steps without hooks were timed: raise --steps." in report.advice
    assert report.advice.startswith("Accepted: plain.\nWhich is fastest is not known") and "fewer than 10" in " ".join(
        to_text(report).split()
    )


def test_where_only_the_baseline_has_enough_times_none_is_said_to_be_slower():
    baseline = seeds_of(run_with(curve(steps=30)), run_with(curve(1, 1.01, steps=30)))
    says = "Accepted: O1.\nWhich is fastest is not known: no step times could be compared.\nOf O1, fewer than 10 steps"
    assert report_with(baseline, O1=hooked()).advice.startswith(says)


def test_a_level_whose_step_times_overlap_with_the_baselines_is_not_recommended_by_speed():
    level = run_with(curve(), peak=1000)
    level.step_seconds = [0.8, 1.1] * 50
    report = report_with(O1=level)
    says = "Take O0: no accepted level reaches the baseline's final loss earlier beyond the scatter of step times."
    assert report.advice.startswith(says)
    level.memory.peak_total = 500 * 2**20
    says = "Take O1: as fast as O0 within the scatter of step times, 50 % less memory."
    assert report_with(O1=level).advice.startswith(says)


@pytest.mark.parametrize("factor, told", [(3.0, "200 %"), (400.0, ">1000 %")])
def test_a_difference_has_at_most_four_digits(factor, told):
    report = report_with(O1=run_with([value * (factor if step > 60 else 1.0) for step, value in enumerate(curve())]))
    (row,) = [line for line in to_text(report).splitlines() if line.startswith("O1 ")]
    assert ("+" + told).replace("+>", ">+") in row and f"ends {told} over" in report.runs["O1"].verdict


SCRIPTS = [
    (
        curve(0, 1.004),
        "new.py trains like gan.py: loss within 0.4 %, seeds differ by 0.99 %. A step takes 3 ms, that of gan.py 4 ms.",
    ),
    (curve()[:9] + curve(0, 0.7)[9:], "new.py ends lower than gan.py: loss by 30 %, seeds differ by 0.99 %. "),
    (
        curve()[:9] + curve(0, 1.3)[9:],
        "new.py does not train like gan.py: loss ends 30 % over the baseline's; 2 % are allowed. ",
    ),
    (curve()[:12], "Whether new.py trains like gan.py was not judged: 12 updates are too few, 20 are needed. "),
]


@pytest.mark.parametrize("losses, told", SCRIPTS)
def test_of_scripts_it_is_said_whether_they_train_alike(losses, told):
    runs = {"gan.py": run_with(curve(), 0.004), "new.py": run_with(losses, 0.003)}
    for name, run in runs.items():
        run.identity = {"script": name}
    runs["gan.py"].repeats = [run_with([value * 1.01 for value in curve()], 0.004)]
    environment = {"script": "examples/gan.py --steps 9", "device": "cpu (threads: 1, float16 emulated in float32)"}
    report = Report(environment=environment, baseline="gan.py", runs=runs)
    advice.advise(report)
    assert report.advice.replace("\n", " ").startswith(told)
    text = to_text(report)
    assert "level" not in text and "unchanged" not in text and text.splitlines()[2].split()[0] == "script"
    assert "the times say nothing about a GPU" in " ".join(text.split())
    assert row_names.title(report) == "new.py against gan.py"


def test_a_script_that_was_edited_during_a_series_is_no_other_script():
    runs = {"O0": run_with(curve()), "O1": run_with(curve())}
    for level, run in runs.items():
        run.identity = {"script": "contents at " + level, "level": level}
    assert not row_names.are_scripts(Report(runs=runs)) and row_names.are_scripts(
        Report(runs=dict(runs, new=runs["O1"]))
    )


def test_a_report_without_its_baseline_gets_no_advice():
    report = Report(baseline="O0", runs={"O1": run_with(curve())})
    advice.advise(report)
    assert "there is no baseline" in report.runs["O1"].verdict and "No advice" in report.advice


def test_the_table_has_the_verdicts_in_at_most_100_columns_and_details_on_request():
    report = report_with(O1=run_with(curve(0, 1.004), 0.5, peak=10**6), O2=run_with(curve(0, 9.0)))
    report.runs["O2"].scale = [(0, 0, 65536.0)]
    lines = to_text(report, 100).splitlines()
    assert max(map(len, lines)) <= 100 and any(each.startswith("O2: rejected: loss ends") for each in lines)
    assert [line.split()[1] for line in lines[1:4] if line[:1] == "O"][:2] == ["baseline", "accepted"]
    assert "65536" not in "\n".join(lines) and "65536" in to_text(report, 100, details=True)


def test_where_the_loss_ends_agrees_with_the_difference_though_seeds_are_far_apart():
    baseline = seeds_of(run_with(curve()), run_with(curve(1, 0.7)))
    row = summarize(report_with(baseline, O1=run_with(curve(0, 0.996))))
    assert row["O0"].losses[0].end == pytest.approx(curves.end_value(baseline))  # O1's seed, not the mean
    assert row["O1"].losses[0].difference == pytest.approx(-0.004, rel=0.05)
    assert row["O1"].losses[0].end == pytest.approx(row["O0"].losses[0].end * (1 + row["O1"].losses[0].difference))


def test_the_difference_in_the_table_is_that_of_the_loss_whatever_decides():
    baseline = seeds_of(logged("accuracy", 0.9), logged("accuracy", 0.9))
    row = summarize(report_with(baseline, O1=logged("accuracy", 0.2)))["O1"]
    assert (row.verdict.kind, row.losses[0].difference) == (REJECTED, 0.0) and "accuracy" in row.verdict.text


def test_columns_are_left_out_of_a_table_that_would_be_wider_than_100_columns():
    small = [[1e-5 * value for value in losses] for losses in (curve(0, 1.004), curve(1, 1.3))]
    options = dict(peak=10**6, samples=[10**9] * 100, status="interrupted")
    wide = {
        name: seeds_of(run_with(small[0], 0.98765, **options), run_with(small[1], 0.98765)) for name in ("O1", "O2")
    }
    titles, *rows = [line for line in to_text(report_with(**wide), 100).splitlines() if line[:1] in "lO"][:4]
    assert max(map(len, [titles] + rows)) <= 100 and "samples/s" not in titles and "to target" in titles


def test_widely_varying_times_are_mentioned_with_the_advice():
    run = run_with(curve())
    run.step_seconds = [1.0, 2.0] * 50
    assert "Step times of O1 vary widely" in " ".join(to_text(report_with(O1=run)).split())


# -- curves ------------------------------------------------------------------------------------------------------------


def test_windows_are_counted_from_the_end_and_hold_at_least_five_updates():
    assert [len(window) for window in curves.windows(list(range(23)))] == [5] * 4
    assert curves.windows(list(range(23)))[-1] == [18, 19, 20, 21, 22]
    assert len(curves.windows(list(range(1000)))) == 10 and curves.windows([1.0]) == []


def test_where_a_run_ends_is_a_median_without_nan():
    losses = [5.0] * 90 + [1.0] * 7 + [math.nan, 1e9, 1e9]
    assert curves.end_value(run_with(losses)) == 1.0
    assert curves.end_value(run_with([])) is None
    assert curves.end_value(run_with([3.0, math.nan])) == 3.0


def test_differences_by_step_are_those_after_equal_updates_without_skipped_steps():
    losses = [8.0, 4.0, 2.0, 1.0]
    level = run_with([8.0, 8.0] + [2 * value for value in losses[1:]], skipped=[1])
    assert curves.relative_gaps(level, run_with(losses)) == [(0, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)]


def test_differences_are_those_of_equal_batches():
    base, level = run_with(curve(scatter=0.5)), run_with(curve(0, 1.01, scatter=0.5))
    windows = curves.compare(level, base, ("loss", 0))
    assert [window.delta for window in windows] == pytest.approx([0.01] * 10, rel=0.5)
