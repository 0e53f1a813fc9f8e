"""The differences between a level and the baseline, with the variation between the baseline's seeds.

The symbols are those of ``verdict``.
"""

import math
import re
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, stdev
from typing import Optional

from . import curves

#: The compared quantities of a series: its last window, and the mean of all windows.
END, AREA = "ends", "is on average"

#: The difference that is allowed if seeds differ by less.
END_TOLERANCE, AREA_TOLERANCE = 0.02, 0.05

#: The number of standard errors within which a difference may be 0, and the largest value for which this is accepted.
NOISE_ERRORS, MAX_NOISE = 2.0, 0.2

#: Standard deviations of a difference that is known from fewer than three seeds.
DEVIATIONS = 3.0

#: Words in the name of a metric that say that a lower value is better, or a higher one; and that say neither.
LOSSES = {"loss", "losses"}
LOWER_IS_BETTER = LOSSES | set("error errors err perplexity ppl nll mse rmse mae wer cer fid lpips".split())
HIGHER_IS_BETTER = set(
    "acc accuracy acc1 acc5 top1 top5 precision recall f1 auc auroc map ap iou miou dice bleu sacrebleu rouge rouge1 "
    "rouge2 rougel psnr ssim ndcg mrr reward rewards return returns score".split()
)
NEITHER = set(
    "scale scaler weight weights norm time seconds lr grad grads gradient gradients std var variance epoch rejected "
    "fake anomaly".split()
)

#: 97.5 % quantiles of Student's t distribution for 1, 2, … degrees of freedom; about 1.96 for more than these.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass
class Difference:
    """One compared quantity of one series: ``value`` (D), ``uncertainty`` (U), ``variation`` (V), ``allowed`` (A).

    ``name``: of the series; ``series``: its display name. ``tolerance``: what is allowed if seeds differ by less.
    ``is_judged``: false for a metric of which it is not known whether lower or higher is better. ``gap``: the absolute
    difference in the last window, not as a share. ``pairs``: of runs. ``apart``: the root mean square of delta over
    pairs of baseline runs. ``noise``: the contribution of the scatter of losses within a window to D. ``grows``,
    ``is_rejected``, ``is_accepted``: see ``verdict``.
    """

    name: tuple
    series: str
    what: str
    tolerance: float
    gap: float
    value: float
    signed: float
    uncertainty: float
    variation: Optional[float]
    allowed: float
    pairs: int
    apart: float
    noise: float
    grows: bool
    is_rejected: bool
    is_accepted: bool
    is_judged: bool

    @property
    def excess(self):
        """The difference as a multiple of the allowed one."""
        return self.value / self.allowed


def is_alone(run):
    """Return whether a run has one loss and no metric."""
    return len(curves.series_names(run)) == 1


def shows_progress(run):
    """Return whether lower is better: the run has one loss, which does not rise by design."""
    first, last = curves.begin_and_end(run) or (0.0, 0.0)
    return len(run.loss_ids()) == 1 and not last > first


def direction(name, baseline):
    """Return in which direction a series is worse: 1 or -1; 0 if both are, None for a metric of which it is unknown."""
    kind, own = name
    if kind == "loss":
        return int(shows_progress(baseline))
    split = re.sub("(?<=[a-z])(?=[A-Z])", "_", own)  # valLoss; but mIoU is one word
    words = set(re.findall("[a-z0-9]+", f"{own} {split}".lower()))
    is_lower, is_higher = bool(words & LOWER_IS_BETTER), bool(words & HIGHER_IS_BETTER)
    if is_lower == is_higher or words & NEITHER:
        return None
    if words & LOSSES:
        return int(shows_progress(baseline))
    return 1 if is_lower else -1


def find_differences(run, baseline, seeds_of=None):
    """Return the ``Difference`` objects of a level: end and area of each series that both have.

    Interrupted runs do not count, since they did not reach their end.

    Args:
        seeds_of: the run whose seeds give the variation, if it is not ``baseline``.
    """
    seeds_of = seeds_of or baseline
    found = []
    for name in curves.series_names(baseline):
        if name not in curves.series_names(run):
            continue
        pairs = _compare(zip([run] + run.repeats, [baseline] + baseline.repeats), name)
        control = _compare(combinations([seeds_of] + seeds_of.repeats, 2), name)
        if pairs:
            worse, label = direction(name, baseline), curves.describe(name, baseline)
            for what, tolerance, start in ((END, END_TOLERANCE, 0.5), (AREA, AREA_TOLERANCE, 0.0)):
                parts = [[windows[int(start * len(windows)) :] for windows in each] for each in (pairs, control)]
                found.append(_difference(name, label, what, parts[0], parts[1], tolerance, worse))
    return found


def _compare(pairs, name):
    whole = [pair for pair in pairs if all(each.status != "interrupted" for each in pair)]
    found = [curves.compare(one, other, name) for one, other in whole]
    return [windows for windows in found if windows]


def _difference(name, series, what, pairs, control, tolerance, worse):
    is_end = what == END
    values = [windows[-1].delta if is_end else mean(window.delta for window in windows) for windows in pairs]
    squares = [window.delta**2 - window.error**2 for windows in control for window in windows]
    variation = math.sqrt(max(0.0, mean(squares))) if squares else None
    error = math.sqrt(mean(windows[-1].error ** 2 for windows in pairs))
    allowed, signed = max(tolerance, _lower_bound(squares)), mean(values)
    value = worse * signed if worse else abs(signed)
    if len(values) >= 3:
        uncertainty = half_width(values)
        is_rejected = value - uncertainty > tolerance
    else:
        uncertainty = DEVIATIONS * max(variation or 0.0, error) / math.sqrt(len(values))
        is_rejected = value - uncertainty > allowed
    late = [window.delta for windows in pairs for window in windows[len(windows) // 2 :]]
    steady = (worse * mean(late) if worse else abs(mean(late))) - half_width(late) > tolerance
    grows = is_end and worse == 1 and _grows(pairs, allowed)
    noise = _noise([windows[-1:] if is_end else windows for windows in pairs])
    noise = max(noise, _wander(late) if is_end else 0.0)
    unknown = min(NOISE_ERRORS * noise, _apart(control))
    is_accepted = not (steady or grows) and (value <= allowed or value <= unknown <= MAX_NOISE)
    gap = mean(windows[-1].gap for windows in pairs)
    rest = (len(values), _apart(control), noise, grows, is_rejected, is_accepted, worse is not None)
    return Difference(name, series, what, tolerance, gap, value, signed, uncertainty, variation, allowed, *rest)


def _grows(pairs, allowed):
    """Return whether delta, the mean over pairs, exceeds ``allowed`` in twice as many updates if its trend continues.

    The windows are those of the second half, so that this is twice their number after the last one. The 95 % interval
    of their mean must lie above 0.
    """
    deltas = [mean(window.delta for window in windows) for windows in zip(*pairs)]
    if len(deltas) < 3 or not all(map(math.isfinite, deltas)) or mean(deltas) <= half_width(deltas):
        return False
    centre = (len(deltas) - 1) / 2
    slope = sum((place - centre) * delta for place, delta in enumerate(deltas))
    slope /= sum((place - centre) ** 2 for place in range(len(deltas)))
    return deltas[-1] + 2 * len(deltas) * slope > allowed


def _noise(pairs):
    """Return the standard error of the mean of all windows, from the scatter within them."""
    errors = [window.error for windows in pairs for window in windows]
    return math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)


def _wander(deltas):
    """Return how much the differences of single windows vary over the second half, as the end does by chance."""
    return stdev(deltas) if len(deltas) > 2 and all(map(math.isfinite, deltas)) else 0.0


def _apart(control):
    """Return how much baseline runs differ, whether because of their seeds or the scatter of their batches."""
    deltas = [window.delta for windows in control for window in windows]
    return math.sqrt(mean(delta**2 for delta in deltas)) if deltas else 0.0


def half_width(values):
    """Return half the width of the 95 % t interval of the mean; 0 if a value is infinite, inf for fewer than 3."""
    if not all(map(math.isfinite, values)):
        return 0.0
    return t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 2 else math.inf


def _lower_bound(squares):
    """Return the root of the mean of squares minus two standard errors, which are large if there are few windows."""
    if len(squares) < 2 or not all(map(math.isfinite, squares)):
        return 0.0
    return math.sqrt(max(0.0, mean(squares) - 2 * stdev(squares) / math.sqrt(len(squares))))


def t_quantile(freedom):
    """Return the 97.5 % quantile of Student's t distribution; ``freedom`` is at least 1."""
    return T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else 1.96 + 2.5 / freedom
