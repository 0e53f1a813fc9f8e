"""Recommends a level and says in one sentence for each level how it compares with the baseline.

A level need not have the losses of the baseline. Its losses may differ from them as much as those of two baseline runs
with different seeds; with one run per level, as much as the baseline's loss changes from step to step.

A level is rejected for the first of these reasons that applies:

    failed        it raised an error, or made no step
    not finite    its loss is inf or nan to the end, or for 20 steps in a row
    skips         more than a tenth of its steps were skipped, some of them after the first 25, in which a dynamic scale
                  may still be too large; or all of them
    divergence    its mean divergence is more than the allowance:
                  with repeats, the mean noise of the baseline (``divergence.noise``), at least 1 %;
                  without, the mean scatter of the baseline's loss (``divergence.scatter``), at least 5 %

Of the others the fastest by median step time is recommended, or, of those within 3 % of it, the one with the lowest
peak memory.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import Optional

from . import divergence
from .number_format import number, percent, size

#: The least allowed mean divergence, where noise was measured and where the scatter replaces it.
MIN_NOISE = 0.01
MIN_SCATTER = 0.05

#: First steps whose skips do not count: a dynamic scale may begin too large.
SCALE_WARM_UP = 25
MAX_SKIPPED_SHARE = 0.1

#: Steps in a row without a finite loss from which a run has not recovered.
MAX_NONFINITE_STEPS = 20

#: Step times that differ by no more than this share count as equal.
EQUAL_TIME = 0.03

#: Seconds: in shorter steps the time that overflow diagnosis takes matters.
SHORT_STEP = 0.02

#: The interquartile range of step times, as a share of the median, above which speeds are unreliable.
MAX_TIME_SPREAD = 0.4


@dataclass
class Assessment:
    """How one level compares with the baseline; None is unknown.

    ``largest``, ``mean``: divergence; ``beyond``: mean divergence beyond the noise; ``allowance``: the largest allowed
    mean divergence. ``seconds``: median step time; ``ratio``: to that of the baseline. ``peak``, ``saved``: bytes.
    ``rejection``: why the level is rejected.
    """

    level: str
    steps: int = 0
    largest: Optional[float] = None
    mean: Optional[float] = None
    beyond: Optional[float] = None
    allowance: Optional[float] = None
    seconds: Optional[float] = None
    ratio: Optional[float] = None
    peak: Optional[int] = None
    saved: Optional[int] = None
    rejection: Optional[str] = None


def recommend(report):
    """Write every run's ``verdict`` and the report's ``advice``."""
    assessments = assess(report)
    best = _best(assessments, report)
    for assessment in assessments.values():
        report.runs[assessment.level].verdict = _verdict(assessment, best, report)
    report.advice = "\n".join(_advice(report, assessments, best))


def assess(report):
    """Return ``{level: Assessment}`` of a report."""
    baseline = report.runs.get(report.baseline)
    return {level: _assessment(level, run, report.baseline, baseline) for level, run in report.runs.items()}


def seconds_per_step(run):
    """Return the median step time of a run and its repeats, without warm-up; None without steps."""
    times = steady_seconds(run)
    return median(times) if times else None


def steady_seconds(run):
    """Return the step times of a run and its repeats, without warm-up and steps in which memory was measured."""
    return [each.step_seconds[step] for each in [run] + run.repeats for step in steady_steps(each)]


def steady_steps(run):
    """Return the steps after warm-up in which memory was not measured; if there are none, the last step."""
    slow, steps = {0} | set(run.measured), range(len(run.step_seconds))
    return [step for step in steps if step not in slow] or list(steps)[-1:]


def _time_spread(run):
    """Return the interquartile range of a run's step times, as a share of their median."""
    times = sorted(steady_seconds(run))
    return (times[len(times) * 3 // 4] - times[len(times) // 4]) / median(times)


def _assessment(level, run, baseline_level, baseline):
    result = Assessment(level, len(run.step_seconds), seconds=seconds_per_step(run), peak=run.memory.peak_total)
    if run.status == "failed":
        result.rejection = run.error or "it failed"
    if baseline is None:
        return result
    reference = seconds_per_step(baseline)
    result.ratio = result.seconds / reference if result.seconds and reference else None
    if result.peak is not None and baseline.memory.peak_total is not None:
        result.saved = baseline.memory.peak_total - result.peak
    result.allowance, noise = _allowance(baseline)
    if level != baseline_level:
        distance = divergence.of_level(run, baseline)
        result.largest, result.mean = max(distance.values(), default=None), divergence.mean(distance.values())
        result.beyond = divergence.mean(divergence.beyond(distance, noise).values()) if noise else None
    result.rejection = result.rejection or _rejection(result, run, baseline)
    return result


def _allowance(baseline):
    """Return (the largest allowed mean divergence, the noise by step or None)."""
    if baseline.repeats:
        noise = divergence.noise(baseline)
        finite = [value for value in noise.values() if math.isfinite(value)]
        return max(MIN_NOISE, divergence.mean(finite) or 0.0), noise
    return max(MIN_SCATTER, divergence.scatter(baseline) or 0.0), None


def _rejection(result, run, baseline):
    """Return why a level is rejected, or None."""
    start = _nonfinite_from(run)
    if start is not None:
        return "its loss is {} from step {} on".format(_nan_or_inf(run, start), start)
    skipped, late = len(run.skipped), [step for step in run.skipped if step >= SCALE_WARM_UP]
    if late and skipped > MAX_SKIPPED_SHARE * result.steps:
        return "{} of its {} steps were skipped, the last at step {}".format(skipped, result.steps, late[-1])
    if result.steps and skipped == result.steps:
        return "every one of its {} steps was skipped".format(skipped)
    if result.mean is not None and result.mean > result.allowance:
        return "its loss is {} away from the baseline's on average ({}), beyond {}".format(
            percent(result.mean), _last_losses(run, baseline), _describe_allowance(result.allowance, baseline)
        )
    return None


def _nonfinite_from(run):
    """Return the first of ``MAX_NONFINITE_STEPS`` steps in a row, or to the end, whose loss is not finite; or None."""
    by_step = {}
    for step, _, value in run.loss:
        by_step[step] = by_step.get(step, True) and math.isfinite(value)
    start = None
    for step, is_finite in by_step.items():
        start = None if is_finite else step if start is None else start
        if start is not None and step - start + 1 >= MAX_NONFINITE_STEPS:
            return start
    return start


def _nan_or_inf(run, start):
    values = [value for step, _, value in run.loss if step >= start and not math.isfinite(value)]
    return "nan" if any(map(math.isnan, values)) else "inf"


def _last_losses(run, baseline):
    last, last_of_baseline = _last_mean(run), _last_mean(baseline)
    if last is None or last_of_baseline is None or last == last_of_baseline:
        return "both end at the same loss"
    return "it ends at {}, the baseline at {}".format(number(last), number(last_of_baseline))


def _last_mean(run):
    """Return the mean loss over the last tenth of a run's steps."""
    values = [value for _, value in sorted(run.losses().items())]
    return divergence.mean(values[-max(1, len(values) // 10) :])


def _describe_allowance(allowance, baseline):
    if baseline.repeats:
        return "the noise of {} seeds, {}".format(1 + len(baseline.repeats), percent(allowance))
    return "the {} that a single run allows".format(percent(allowance))


def _best(assessments, report):
    """Return the assessment of the recommended level, or None if the baseline cannot be compared with."""
    baseline = assessments.get(report.baseline)
    if baseline is None or baseline.rejection is not None or not baseline.seconds:
        return None
    accepted = [each for each in assessments.values() if each.rejection is None and each.seconds]
    fastest = min(each.seconds for each in accepted)
    equally_fast = [each for each in accepted if each.seconds <= fastest * (1 + EQUAL_TIME)]
    return max(equally_fast, key=lambda each: (each.saved or 0, -each.seconds))


# -- sentences ---------------------------------------------------------------------------------------------------------


def _verdict(result, best, report):
    run = report.runs[result.level]
    if run.status == "failed":
        return "failed: {}".format(result.rejection)
    if not result.steps:
        return "not compared: interrupted before its first step"
    comparison = "baseline" if result.level == report.baseline else _comparison(result)
    if result is best or best is None or result.rejection is not None:
        return comparison + (", recommended" if result is best else "")
    return "{}; {}".format(comparison, _why_not(result, best))


def _comparison(result):
    if result.rejection is not None:
        return "rejected: {}".format(result.rejection)
    if result.mean is None:
        return "not compared: there is no baseline"
    return "within noise ({} away on average, {} allowed)".format(percent(result.mean), percent(result.allowance))


def _why_not(result, best):
    slower, saved = result.seconds / best.seconds, _saved(result)
    if slower > 1 + EQUAL_TIME:
        return "takes {:.2f} times the time of {}".format(slower, best.level) + (saved and ", " + saved)
    more = (best.saved or 0) - (result.saved or 0)
    return "as fast as {}".format(best.level) + (", with {} more peak memory".format(size(more)) if more else "")


def _saved(result):
    if not result.saved:
        return ""
    share = percent(abs(result.saved) / (result.saved + result.peak))
    return "{} {} ({}) of peak memory".format("saves" if result.saved > 0 else "costs", size(abs(result.saved)), share)


def _smallest_level(assessments):
    """Say which accepted level saves the most memory, if any does."""
    smaller = [each for each in assessments.values() if each.rejection is None and each.ratio and (each.saved or 0) > 0]
    if not smaller:
        return ""
    best = max(smaller, key=lambda each: each.saved)
    return " Where memory is short, {} {} at {:.2f} times the time.".format(best.level, _saved(best), best.ratio)


def _advice(report, assessments, best):
    advice = [_recommended_level(report, assessments, best)]
    return advice + (_remarks(report, assessments) if best is not None else [])


def _recommended_level(report, assessments, best):
    name, baseline = report.baseline, assessments.get(report.baseline)
    if baseline is None or not baseline.seconds:
        return "No advice: the baseline {} recorded no steps to compare with.".format(name)
    if report.runs[name].status == "failed":
        return "No advice: the baseline {} failed.".format(name)
    if best is None:
        sentence = "No advice: at the baseline {} {}. Fix that first: another level cannot help."
        return sentence.format(name, baseline.rejection)
    if len(assessments) == 1:
        return "No advice: only the baseline was run."
    if best is baseline:
        sentence = "Take {}: no other level that stays within noise is faster here.".format(name)
        return sentence + _smallest_level(assessments)
    saved = _saved(best)
    speed = "{:.2f} times the speed of {}".format(1 / best.ratio, name)
    return "Take {}: the fastest level within noise, {}{}.".format(best.level, speed, saved and ", " + saved)


def _remarks(report, assessments):
    """Return what makes the measured times less reliable, one sentence each."""
    measured = [level for level, result in assessments.items() if result.seconds]
    unreliable = [level for level in measured if _time_spread(report.runs[level]) > MAX_TIME_SPREAD]
    remarks = []
    if unreliable:
        sentence = "Step times of {} vary widely: compare speed on a machine that runs nothing else."
        remarks.append(sentence.format(", ".join(unreliable)))
    if report.environment.get("diagnose") and assessments[report.baseline].seconds < SHORT_STEP:
        remarks.append("Steps are so short that diagnosing overflow takes much of their time: use --no-diagnose.")
    if str(report.environment.get("device") or "").startswith("cpu"):
        remarks.append("Times are those of a CPU; GPUs rank levels differently. Losses and scales are comparable.")
    return remarks
