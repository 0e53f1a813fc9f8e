"""Judges each level against the baseline, with the variation between seeds as the measure.

The baseline is trained with at least two seeds (the control, an A/A test). For each series, the losses and the metrics
that the script logs and whose names say what is better, with ``end`` and ``area`` of ``curves``:

    variation V = root mean square of delta(g) over all pairs of baseline runs with different seeds, minus the variance
                that the scatter of the batches adds to it; for ``end`` over the windows of the second half, for
                ``area`` over all windows
    allowed     A = max(V less two standard errors of its square, 2 % for the end, 5 % for the area)
    difference  D = mean over the pairs (level, baseline) of equal seed; its sign counts where the script has one loss
                that falls, so that a lower loss is not a fault, and for a metric whose name says whether lower or
                higher is better (``loss``, ``accuracy``); for several losses, and one that rises, its absolute value
    uncertainty U = from 3 seeds on the half width of the 95 % t interval of D;
                with fewer 3 * max(V, the error of delta in its last window) / sqrt(number of pairs)
    noise       N = 2 standard errors of D, from the scatter of losses within windows (of end also from how much delta
                varies between the windows of the second half), at most the root mean square of delta over the pairs
                of baseline runs

    accepted    D <= A or D <= N <= 20 % for both, in every series, and no difference is steady or grows
    rejected    D - U > A for one of them; from 3 seeds on also D - U > the 2 or 5 %
    not judged  otherwise: more seeds are needed

A difference is steady if, over the windows of the second half, the 95 % t interval of the mean of delta lies above the
2 or 5 %: rounding moves a curve up and down. The difference at the end grows if lower is better, this interval lies
above 0, and delta would exceed A in twice as many updates, along a straight line through these windows: updates that
half weights lose, for one, cost little at first.

Before that, a level is rejected if it failed, if its loss is not finite for 20 steps in a row or until the end, or if
more than a tenth of its steps were skipped, some of them after the first 25. It is not judged if there is no control,
if fewer than 20 updates were made, if the runs saw different data, or if the baseline is not a usable reference: it is
itself broken, or its own seeds are more than 100 % apart. Data are the same if the checksums of the batches are,
however much a level rounds. If these are not known, or differ, the data are different if first losses differ by more
than 5 %; or if the changes of the first 30 losses do not correlate in rank, though first losses or successive batches
differ by 0.5 %, and the first three losses do not agree, for this and every other level.

Whether a row ends within a ``--tolerance`` of the baseline is no verdict: see ``tolerance``.
"""

import math
from dataclasses import dataclass
from typing import Tuple

from ..number_format import number, percent
from . import curves
from .failures import failure
from .level_differences import END, MAX_NOISE, NOISE_ERRORS, Difference, find_differences, is_alone, shows_progress

ACCEPTED, REJECTED, NOT_JUDGED, BASELINE = "accepted", "rejected", "not judged", "baseline"


#: The multiple of its first value that a baseline's loss must reach to have diverged. Smaller rises may be by design:
#: those of a curriculum, a generator or a policy.
DIVERGED = 50.0

#: The remark if a lower loss is not better.
ALIKE = "the baseline's own loss rises, so what was judged is whether it trains alike, not its progress"

#: The variation between its seeds above which the baseline is not a usable reference.
MAX_VARIATION = 1.0

#: The relative difference of first losses, with equal weights and batches, that rounding may cause.
FIRST_LOSS = 0.05

#: If first losses, or those of successive batches, differ by more than rounding explains, the changes of the first
#: losses of two runs must correlate. These are the least correlations if the first losses are similar, and if they are
#: not. On equal data, the correlation is 0.99 or more, or less if a level does not learn. Of small training runs on
#: different data, 4 % had first losses within 5 %; of these, 2 % reached 0.5, and none of 890 reached 0.7.
SIMILAR_FIRST_LOSS, FIRST_STEPS = 0.005, 30
MIN_CORRELATION, MIN_CORRELATION_APART = 0.5, 0.75

#: Runs whose first losses (this number of them) agree within this share of the batches' scatter saw the same data,
#: whatever follows: unstable training may diverge at a skipped step. On different data, each loss agrees with a chance
#: of 6 %.
EQUAL_LOSSES, EQUAL_SHARE = 3, 0.1


@dataclass
class Verdict:
    """How a level compares with the baseline.

    ``kind``: accepted, rejected, not judged or baseline. ``text``: why, in one sentence. ``end``: the ``Difference`` at
    the end of the first loss, or None if unknown. ``differences``: those of all series. ``progress``: True if a lower
    loss is not a fault; otherwise only whether the level trains like the baseline was judged.
    """

    kind: str
    text: str
    differences: Tuple[Difference, ...] = ()
    progress: bool = True

    @property
    def end(self):
        """The ``Difference`` at the end of the first loss."""
        return self.differences[0] if self.differences else None

    @property
    def ends(self):
        """``{name of a series: the Difference at its end}``."""
        return {each.name: each for each in self.differences if each.what == END}


def judge(report):
    """Return ``{level: Verdict}`` of a report."""
    baseline = report.runs.get(report.baseline)
    broken = None if baseline is None else _broken(baseline)
    verdicts = {}
    for level, run in report.runs.items():
        if level == report.baseline:
            fault = failure(run) or broken
            verdicts[level] = Verdict(REJECTED, fault) if fault else Verdict(BASELINE, "baseline")
        else:
            verdicts[level] = _of_level(run, baseline, broken, _agree(report, level))
    return verdicts


def judge_backwards(report, level):
    """Return the ``Verdict`` on the baseline, with a level as the reference; None if that level cannot be one."""
    baseline, reference = report.runs[report.baseline], report.runs[level]
    if failure(baseline) or _broken(reference) or _different_data(baseline, reference):
        return None
    return _compared(baseline, reference, seeds_of=baseline)


def _broken(baseline):
    """Return why a baseline cannot be used for comparison, or None."""
    fault = failure(baseline)
    if fault:
        return fault
    for name in curves.series_names(baseline):
        first, last = curves.begin_and_end(baseline, name) or (0.0, 0.0)
        if name[0] == "loss" and is_alone(baseline) and last > DIVERGED * max(first, 0.0) > 0:
            return f"its own loss diverges, from {number(first)} to {number(last)}"
    return None


def _agree(report, level):
    """Return whether the first losses of another level agree with the baseline's, so that the data are the same."""
    baseline = report.runs.get(report.baseline)
    others = [run for name, run in report.runs.items() if name not in (level, report.baseline) and run.loss]
    return baseline is not None and any(not _different_data(run, baseline) for run in others)


def _of_level(run, baseline, broken, data_agree):
    fault = failure(run)
    if fault is not None and (broken is None or run.status == "failed"):
        return Verdict(REJECTED, fault)
    if baseline is None:
        return Verdict(NOT_JUDGED, "there is no baseline")
    if broken is not None:
        return Verdict(NOT_JUDGED, f"the baseline is not a usable reference: {broken}")
    if baseline.status == "interrupted":
        return Verdict(NOT_JUDGED, f"the baseline was interrupted after {len(baseline.step_seconds)} steps")
    updates = min(len(curves.curve(each, ("loss", 0))) for each in (run, baseline))
    if run.status == "interrupted":
        return Verdict(NOT_JUDGED, f"interrupted after {len(run.step_seconds)} steps")
    if updates < curves.MIN_UPDATES:
        return Verdict(NOT_JUDGED, f"{updates} updates are too few, {curves.MIN_UPDATES} are needed")
    differing = None if data_agree else _different_data(run, baseline)
    if differing:
        return Verdict(NOT_JUDGED, differing)
    return _compared(run, baseline)


def _different_data(run, baseline):
    """Return a message if first losses with equal seeds and weights differ by more than rounding explains, or None."""
    for own, base in zip([run] + run.repeats, [baseline] + baseline.repeats):
        first, reference = own.losses().get(0), base.losses().get(0)
        if (
            _had_same_data(own, base)
            or first is None
            or reference is None
            or not (math.isfinite(first) and math.isfinite(reference))
        ):
            continue
        gap = _relative_gap((first, reference))
        if gap > FIRST_LOSS or _are_unrelated(own, base, gap):
            return _told_apart(own, base, gap)
    return None


def _had_same_data(run, baseline):
    """Return whether the checksums of the data of two runs show that they had the same data."""
    told = [_agree_on(run.loaded, baseline.loaded), _agree_on(run.inputs, baseline.inputs)]
    return True in told and False not in told


def _agree_on(checksums, others):
    """Return whether checksums by step are equal; None if that is not conclusive, such as when all steps are equal."""
    both = list(zip(checksums, others))
    if any(len(set(each) - {0}) < 2 for each in zip(*both)) or not both:
        return None
    return all(one == other for one, other in both)


def _relative_gap(pair):
    return abs(pair[0] - pair[1]) / (max(map(abs, pair)) or 1.0)


def _told_apart(run, baseline, gap):
    """Return the message that runs differ too much to be compared, with the two losses; ``gap``: of the first."""
    base = dict(curves.points(baseline, ("loss", 0))[:FIRST_STEPS])
    pairs = {step: (loss, base[step]) for step, loss in curves.points(run, ("loss", 0)) if step in base}
    finite = [step for step in pairs if all(map(math.isfinite, pairs[step]))]
    step = 0 if gap > FIRST_LOSS else max(finite, key=lambda each: _relative_gap(pairs[each]))
    skipped = min(set(run.skipped) ^ set(baseline.skipped), default=step)
    if gap <= SIMILAR_FIRST_LOSS and skipped < step:
        told, cure = f"runs part after step {skipped}, which was skipped", "train with less noise, or seed"
    else:
        told, cure = "runs saw different data", "seed"
    loss = "first loss" if step == 0 else f"loss of step {step}"
    own, reference = map(number, pairs[step])
    return f"{told}: with equal seeds the {loss} is {own}, the baseline's {reference}; {cure} every generator"


def _are_unrelated(run, baseline, gap):
    """Return whether the first losses vary more than by rounding, and do not correlate by step or by update."""
    name = ("loss", 0)
    steps = [curves.points(each, name)[:FIRST_STEPS] for each in (run, baseline)]
    updates = [list(enumerate(curves.curve(each, name)[:FIRST_STEPS])) for each in (run, baseline)]
    found = [curves.correlation(*steps), curves.correlation(*updates)]
    scatter = curves.scatter(steps[1])
    least = MIN_CORRELATION if gap <= SIMILAR_FIRST_LOSS else MIN_CORRELATION_APART
    if max(gap, scatter) <= SIMILAR_FIRST_LOSS or None in found or max(found) >= least:
        return False
    begin = [(loss, base) for (_, loss), (_, base) in zip(*steps)][:EQUAL_LOSSES]
    return any(_relative_gap(pair) > min(SIMILAR_FIRST_LOSS, EQUAL_SHARE * scatter) for pair in begin)


def _compared(run, baseline, seeds_of=None):
    differences = tuple(find_differences(run, baseline, seeds_of))
    progress = shows_progress(baseline) or not is_alone(baseline)
    judged = [each for each in differences if each.is_judged]
    if not judged:
        return Verdict(NOT_JUDGED, "it has no loss in common with the baseline", differences, progress)
    kind, text = _kind_and_text(judged)
    return Verdict(kind, text if progress else f"{text}; {ALIKE}", differences, progress)


def _kind_and_text(differences):
    """Return the verdict for one or more differences, and the reason."""
    rejected = [each for each in differences if each.is_rejected]
    worst = max(differences, key=lambda each: each.excess)
    if worst.variation is None:
        return NOT_JUDGED, f"{tell(worst)}; without a control the difference cannot be judged"
    if worst.variation > MAX_VARIATION:
        text = "the baseline's own seeds are {} apart: train longer, or with larger batches"
        return NOT_JUDGED, text.format(percent(worst.variation))
    if rejected:
        worst = max(rejected, key=lambda each: each.excess)
        allowed = worst.allowed if worst.value > worst.allowed else worst.tolerance  # from 3 seeds on
        return REJECTED, f"{tell(worst)}; {percent(allowed)} are allowed"
    if all(each.is_accepted for each in differences):
        return ACCEPTED, _accepted_text(max(differences[::2], key=lambda each: abs(each.signed)))
    worst = max((each for each in differences if not each.is_accepted), key=lambda each: each.excess)
    if worst.grows and worst.value <= worst.allowed:
        return (
            NOT_JUDGED,
            f"{tell(worst)}, and it grows: over {percent(worst.allowed)} in twice as many steps",
        )
    if worst.value <= worst.allowed:
        return NOT_JUDGED, f"{tell(worst)} in each window, {seeds_differ(worst)}: use more --repeats"
    if NOISE_ERRORS * worst.noise > max(MAX_NOISE, worst.value):
        text = "{}, known to \u00b1 {} only, because losses scatter: train longer, or with larger batches"
        return NOT_JUDGED, text.format(tell(worst), percent(NOISE_ERRORS * worst.noise))
    return (
        NOT_JUDGED,
        f"{tell(worst)}; {percent(worst.allowed)} are allowed, but it may be chance: use more --repeats",
    )


def _accepted_text(end):
    if end.value < -end.allowed:
        return "{}: {}, not worse".format(tell(end), "lower" if end.signed < 0 else "higher")
    if end.value <= end.allowed:
        return f"{tell(end)}; {percent(end.allowed)} are allowed"
    return f"{tell(end)}, no more than the losses of a window scatter: \u00b1 {percent(NOISE_ERRORS * end.noise)}"


def seeds_differ(difference):
    """Return by how much the seeds of a difference with a control differ, as text."""
    variation = difference.variation
    return f"seeds differ by {percent(variation)}" if variation else "seeds differ by less than batches do"


def tell(difference, whose="the baseline's"):
    """Return a difference as text: "loss ends 3 % over the baseline's"."""
    share, where = abs(difference.signed), "over" if difference.signed > 0 else "under"
    told = "far over" if math.isinf(share) else f"{percent(share)} {where}" if share else "at"
    return f"{difference.series} {difference.what} {told} {whose}"
