"""Which level to take, and why not the others.

Owns: verdicts: the one sentence of each run, and the advice of a report.
Must not touch: measurements.
The surprise: a level is not asked to repeat the baseline's losses, only to stay as near to them as the baseline
stays to itself under another seed. Where there is one run only, the step-to-step scatter of the baseline's loss
stands in.

A level is rejected for the first of these that holds:

    failed        it raised, or it never took a step
    not finite    its loss is inf or nan to the end, or for 20 steps in a row
    skips         more than a tenth of its steps were skipped, and not only among the first 25, which a dynamic scale
                  may need; or all of them
    divergence    its mean divergence is more than the allowance:
                  with repeats, the mean noise of the baseline (``divergence.noise``), at least 1 %;
                  without, the mean scatter of the baseline's loss (``divergence.scatter``), at least 5 %

Of the others the fastest by median step time is recommended; times within 3 % of each other count as equal, and
then the one with the lower peak of memory.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import Optional

from . import divergence
from .words import number, percent, size

#: What a mean divergence may be at least, where noise was measured and where the scatter stands in.
LEAST_NOISE = 0.01
LEAST_SCATTER = 0.05

#: Skipped steps that are nobody's concern: a dynamic scale looks for its place.
SETTLING = 25
SKIPPED_SHARE = 0.1
RECOVERY = 20
SAME_TIME = 0.03

#: Seconds: in a shorter step the cost of explaining skipped ones tells.
SHORT_STEP = 0.02

#: Of the step times of a run, how far the middle half spreads as a share of the median, where speed is hard to judge.
UNSTEADY = 0.4


@dataclass
class Assessment:
    """What is known of one level beside the baseline; None is not known."""

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


def judge(report):
    """Write every run's ``verdict`` and the report's ``advice``."""
    found = assess(report)
    best = _best(found, report)
    for assessment in found.values():
        report.runs[assessment.level].verdict = _verdict(assessment, best, report)
    report.advice = "\n".join(_advice(report, found, best))


def assess(report):
    """Return ``{level: Assessment}`` of a report."""
    baseline = report.runs.get(report.baseline)
    return {level: _assessment(level, run, report.baseline, baseline) for level, run in report.runs.items()}


def seconds_per_step(run):
    """Return the median step time of a run and its repeats, without warm-up; None where there is none."""
    times = steady_seconds(run)
    return median(times) if times else None


def steady_seconds(run):
    """Return the step times of a run and its repeats: those that neither warm-up nor measuring made longer."""
    return [each.step_seconds[step] for each in [run] + run.repeats for step in steady_steps(each)]


def steady_steps(run):
    """Return the steps whose time counts; the last one where there are no others."""
    slow, steps = {0} | set(run.measured), range(len(run.step_seconds))
    return [step for step in steps if step not in slow] or list(steps)[-1:]


def _spread(run):
    """Return the width of the middle half of a run's step times, as a share of their median."""
    times = sorted(steady_seconds(run))
    return (times[len(times) * 3 // 4] - times[len(times) // 4]) / median(times)


def _assessment(level, run, baseline_level, baseline):
    found = Assessment(level, len(run.step_seconds), seconds=seconds_per_step(run), peak=run.memory.peak_total)
    if run.status == "failed":
        found.rejection = run.error or "it failed"
    if baseline is None:
        return found
    usual = seconds_per_step(baseline)
    found.ratio = found.seconds / usual if found.seconds and usual else None
    if found.peak is not None and baseline.memory.peak_total is not None:
        found.saved = baseline.memory.peak_total - found.peak
    found.allowance, band = _allowance(baseline)
    if level != baseline_level:
        distance = divergence.of_level(run, baseline)
        found.largest, found.mean = max(distance.values(), default=None), divergence.mean(distance.values())
        found.beyond = divergence.mean(divergence.beyond(distance, band).values()) if band else None
    found.rejection = found.rejection or _rejection(found, run, baseline)
    return found


def _allowance(baseline):
    """Return (what a mean divergence may be, the band of noise or None)."""
    if baseline.repeats:
        band = divergence.noise(baseline)
        finite = [value for value in band.values() if math.isfinite(value)]
        return max(LEAST_NOISE, divergence.mean(finite) or 0.0), band
    return max(LEAST_SCATTER, divergence.scatter(baseline) or 0.0), None


def _rejection(found, run, baseline):
    """Say why a level is not to be taken, or return None."""
    lost = _lost_from(run)
    if lost is not None:
        return "its loss is {} from step {} on".format(_kinds(run, lost), lost)
    skipped, late = len(run.skipped), [step for step in run.skipped if step >= SETTLING]
    if late and skipped > SKIPPED_SHARE * found.steps:
        return "{} of its {} steps were skipped, the last at step {}".format(skipped, found.steps, late[-1])
    if found.steps and skipped == found.steps:
        return "every one of its {} steps was skipped".format(skipped)
    if found.mean is not None and found.mean > found.allowance:
        return "its loss is {} away from the baseline's on average ({}), beyond {}".format(
            percent(found.mean), _direction(run, baseline), _named(found.allowance, baseline)
        )
    return None


def _lost_from(run):
    """Return the step from which on no loss is finite any more, or from which ``RECOVERY`` in a row were not."""
    by_step = {}
    for step, _, value in run.loss:
        by_step[step] = by_step.get(step, True) and math.isfinite(value)
    start = None
    for step, is_finite in by_step.items():
        start = None if is_finite else step if start is None else start
        if start is not None and step - start + 1 >= RECOVERY:
            return start
    return start


def _kinds(run, start):
    values = [value for step, _, value in run.loss if step >= start and not math.isfinite(value)]
    return "nan" if any(map(math.isnan, values)) else "inf"


def _direction(run, baseline):
    ours, theirs = (_last_mean(each) for each in (run, baseline))
    if ours is None or theirs is None or ours == theirs:
        return "it ends alike"
    return "it ends at {}, the baseline at {}".format(number(ours), number(theirs))


def _last_mean(run):
    """Return the mean loss over the last tenth of a run's steps."""
    values = [value for _, value in sorted(run.losses().items())]
    return divergence.mean(values[-max(1, len(values) // 10) :])


def _named(allowance, baseline):
    if baseline.repeats:
        return "the noise of {} seeds, {}".format(1 + len(baseline.repeats), percent(allowance))
    return "the {} that a single run allows".format(percent(allowance))


def _best(found, report):
    """Return the assessment of the level to take, or None where the baseline is no measure."""
    baseline = found.get(report.baseline)
    if baseline is None or baseline.rejection is not None or not baseline.seconds:
        return None
    good = [each for each in found.values() if each.rejection is None and each.seconds]
    fastest = min(each.seconds for each in good)
    alike = [each for each in good if each.seconds <= fastest * (1 + SAME_TIME)]
    return max(alike, key=lambda each: (each.saved or 0, -each.seconds))


# -- words -------------------------------------------------------------------------------------------------------------


def _verdict(found, best, report):
    run = report.runs[found.level]
    if run.status == "failed":
        return "failed: {}".format(found.rejection)
    if not found.steps:
        return "not judged: interrupted before its first step"
    judged = "baseline" if found.level == report.baseline else _judged(found)
    if found is best or best is None or found.rejection is not None:
        return judged + (", the one to take" if found is best else "")
    return "{}; {}".format(judged, _why_not(found, best))


def _judged(found):
    if found.rejection is not None:
        return "rejected: {}".format(found.rejection)
    if found.mean is None:
        return "not judged: there is no baseline to compare it with"
    return "within noise ({} away on average, {} allowed)".format(percent(found.mean), percent(found.allowance))


def _why_not(found, best):
    slower, saved = found.seconds / best.seconds, _saved(found)
    if slower > 1 + SAME_TIME:
        return "takes {:.2f} times the time of {}".format(slower, best.level) + (saved and ", " + saved)
    more = (best.saved or 0) - (found.saved or 0)
    return "as fast as {}, with {}".format(best.level, size(more) + " more peak memory" if more else "nothing to gain")


def _saved(found):
    if not found.saved:
        return ""
    share = percent(abs(found.saved) / (found.saved + found.peak))
    return "{} {} ({}) of peak memory".format("saves" if found.saved > 0 else "costs", size(abs(found.saved)), share)


def _smallest(found):
    """Say which level saves the most, where that is worth its time."""
    good = [each for each in found.values() if each.rejection is None and each.ratio and (each.saved or 0) > 0]
    if not good:
        return ""
    best = max(good, key=lambda each: each.saved)
    return " Where memory is short, {} {} at {:.2f} times the time.".format(best.level, _saved(best), best.ratio)


def _advice(report, found, best):
    name, baseline = report.baseline, found.get(report.baseline)
    if baseline is None or not baseline.seconds:
        yield "No advice: the baseline {} gave nothing to compare with.".format(name)
    elif report.runs[name].status == "failed":
        yield "No advice: the baseline {} failed.".format(name)
    elif best is None:
        yield "No advice: at the baseline {} {}. Mend that first; no level can.".format(name, baseline.rejection)
    elif len(found) == 1:
        yield "No advice: only the baseline was run."
    elif best is baseline:
        yield "Take {}: no other level that stays within noise is faster here.".format(name) + _smallest(found)
    else:
        saved = _saved(best)
        speed = "{:.2f} times the speed of {}".format(1 / best.ratio, name)
        yield "Take {}: the fastest level within noise, {}{}.".format(best.level, speed, saved and ", " + saved)
    if best is None:
        return
    unsteady = [each.level for each in found.values() if each.seconds and _spread(report.runs[each.level]) > UNSTEADY]
    if unsteady:
        yield "Step times of {} vary widely: judge speed on a machine that does nothing else.".format(", ".join(unsteady))
    if report.environment.get("diagnose") and found[name].seconds < SHORT_STEP:
        yield "Steps as short as these spend much of their time on being watched: --no-diagnose gives exacter times."
    if str(report.environment.get("device") or "").startswith("cpu"):
        yield "Times are of a CPU: a GPU with half units ranks levels otherwise. Losses and scales carry over."
