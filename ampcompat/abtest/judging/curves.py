"""Curves of losses and logged metrics, reduced to medians over windows, and the relative difference of two curves.

A curve is the list of one series' values in the order of the optimizer's updates. Skipped steps are left out, since
they change no weights, so two skips at the start do not shift a level's curve against the baseline's.

Both curves L and B are cut to the same number of updates and into up to ten windows of equal width, counted from the
end. In each window, the median difference is used, so that a bad batch, a spike or a heavy tail has no effect. The
difference is taken update by update, so that the scatter of batches that both runs saw cancels:

    delta(g) = median of (L - B) in window g / s(g)
    s(g)     = max(|m(g)|, 0.05 * median of |m| over all windows), m(g) = median of B in window g
    error(g) = 1.2533 * 1.4826 * median absolute deviation of (L - B) / sqrt(width) / s(g)

``end`` is delta of the last window, ``area`` the mean of delta over all windows.
"""

import math
from dataclasses import dataclass
from statistics import median

#: The least number of updates for which curves are compared; the most windows; the fewest updates in a window.
MIN_UPDATES, WINDOWS, MIN_WIDTH = 20, 10, 5

#: The number of values that is enough for the median of a window.
MAX_WIDTH = 1000

#: The smallest divisor of a difference, as a share of the baseline's typical value.
LEAST_SHARE = 0.05

#: Factors from the median absolute deviation to the standard deviation, and from that of values to that of their
#: median.
MAD_TO_SD, SD_OF_MEDIAN = 1.4826, 1.2533


def series_names(run):
    """Return the names of a run's series: ``("loss", loss_id)`` of its losses and ``("metric", name)``."""
    losses = sorted(run.loss_ids())
    return [("loss", loss_id) for loss_id in losses] + [("metric", name) for name in sorted(run.metrics)]


def describe(name, run):
    """Return the name of a series for people."""
    kind, own = name
    several = len(run.loss_ids()) > 1
    return own if kind == "metric" else f"loss {own}" if several else "loss"


def points(run, name):
    """Return one series of a run as ``[(step, value), …]``."""
    kind, own = name
    return list(zip(*run.loss.by_step(own)) if kind == "loss" else run.metrics.get(own, []))


def counted_points(run, name):
    """Return one series of a run as ``[(step, value), …]`` without losses of skipped steps."""
    found, skipped = points(run, name), set(run.skipped) if name[0] == "loss" else ()
    return [point for point in found if point[0] not in skipped] if skipped else found


def curve(run, name):
    """Return the values of one series of a run, without those of skipped steps."""
    return [value for _, value in counted_points(run, name)]


def windows(values):
    """Return up to ten windows of a curve, the last one last; of wide ones every n-th value, at least ``MAX_WIDTH``."""
    width = max(MIN_WIDTH, len(values) // WINDOWS)
    count = min(WINDOWS, len(values) // width)
    starts = [len(values) - width * (count - index) for index in range(count)]
    return [values[start : start + width : max(1, width // MAX_WIDTH)] for start in starts]


def begin_and_end(run, name=("loss", 0)):
    """Return the medians of the first and the last window of a series that have one; None if there is none."""
    found = [value for value in map(finite_median, windows(curve(run, name))) if math.isfinite(value)]
    return (found[0], found[-1]) if found else None


def end_value(run, name=("loss", 0)):
    """Return where a run ends: the median of a series' last window, or of all values without a window, or None."""
    ends = begin_and_end(run, name) or [finite_median(curve(run, name))]
    return ends[-1] if math.isfinite(ends[-1]) else None


@dataclass
class Window:
    """The difference of two curves in one window: ``gap``; ``delta``, as a share; ``error``, its standard error."""

    gap: float
    delta: float
    error: float


def compare(run, baseline, name):
    """Return a ``Window`` for each window of one series of two runs in which the baseline has finite values.

    The runs are compared by update. If steps were skipped, they are also compared by step, which pairs equal batches,
    and the smaller difference of each window is used.
    """
    found = _compare(curve(run, name), curve(baseline, name))
    if name[0] == "loss" and set(run.skipped) != set(baseline.skipped):
        base, skipped = dict(points(baseline, name)), set(run.skipped)
        both = [(value, base[step]) for step, value in points(run, name) if step in base and step not in skipped]
        by_step = _compare(*zip(*both)) if both else []
        count = min(len(found), len(by_step))
        pairs = zip(found[len(found) - count :], by_step[len(by_step) - count :])
        found = [min(pair, key=lambda window: abs(window.delta)) for pair in pairs]
    return found


def _compare(values, reference):
    length = min(len(values), len(reference))
    own, base = windows(values[:length]), windows(reference[:length])
    known = [finite_median(window) for window in base]
    least = LEAST_SHARE * finite_median([abs(value) for value in known])
    found = []
    for window, other, centre in zip(own, base, known):
        gaps = [one - two for one, two in zip(window, other) if math.isfinite(one) and math.isfinite(two)]
        divisor = max(abs(centre), least)
        if math.isfinite(centre) and len(gaps) * 2 < len(window):
            found.append(Window(math.inf, math.inf, 0.0))
        elif math.isfinite(centre):
            gap, error = median(gaps), error_of_median(gaps)
            found.append(Window(gap, _ratio(gap, divisor), _ratio(error, divisor)))
    return found


def relative_gaps(run, baseline):
    """Return ``[(step, (L - B) / max(|B|, 0.05 * median of |B|)), …]`` of the first losses of two runs, by update.

    The step is that of the run; skipped steps of either are left out.
    """
    own, base = counted_points(run, ("loss", 0)), curve(baseline, ("loss", 0))
    least = LEAST_SHARE * finite_median([abs(value) for value in base[:: 1 + len(base) // MAX_WIDTH]])
    least = least if math.isfinite(least) else 0.0
    return [(step, (value - other) / (max(abs(other), least) or 1.0)) for (step, value), other in zip(own, base)]


def _ratio(value, divisor):
    return value / divisor if divisor else math.copysign(math.inf, value) if value else 0.0


def finite_median(values):
    """Return the median of the finite values; nan without any."""
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan


def error_of_median(values):
    """Return the standard error of a median, from the median absolute deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = median(values)
    deviation = MAD_TO_SD * median([abs(value - centre) for value in values])
    return SD_OF_MEDIAN * deviation / math.sqrt(len(values))


def scatter(points):
    """Return the standard deviation of a series' batches, from its second differences, as a share of its median."""
    values = [value for _, value in points if math.isfinite(value)]
    changes = [abs(x - 2 * y + z) for x, y, z in zip(values, values[1:], values[2:])]
    typical = abs(median(values)) if values else 0.0
    return MAD_TO_SD * median(changes) / math.sqrt(6) / typical if changes and typical else 0.0


def correlation(points, others):
    """Return Spearman's rank correlation of the second differences of two series, -1 to 1; None for fewer than 10.

    Ranks are used because a level that diverges at one step has one large difference there.
    """
    other = dict(others)
    both = [(value, other[step]) for step, value in points if step in other]
    triples = zip(both, both[1:], both[2:])
    pairs = [tuple(x - 2 * y + z for x, y, z in zip(*triple)) for triple in triples]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if len(pairs) < 10 or min(len(set(values)) for values in zip(*pairs)) == 1:
        return None
    distances = [(one - two) ** 2 for one, two in zip(*map(_ranks, zip(*pairs)))]
    return 1 - 6 * sum(distances) / (len(pairs) ** 3 - len(pairs))


def _ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    return sorted(range(len(values)), key=order.__getitem__)
