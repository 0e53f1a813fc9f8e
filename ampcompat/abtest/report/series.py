"""Prepares series of (step, value) points for drawing: smooths and thins long ones, leaves gaps for nan and inf.

Thinning keeps the lowest and the highest value of each stretch, as in M4 (Jugel, Jerzak, Hackenbroich, Markl, *M4: a
visualization-oriented time series data aggregation*, VLDB 2014), so that the drawn line covers the same pixels.
"""

import itertools
import math
import operator
from bisect import bisect_left


def with_gaps(points):
    """Return the points with nan for each value that is not finite: a line breaks there."""
    return [(step, value if math.isfinite(value) else math.nan) for step, value in points]


def thinned(points, max_points):
    """Return at most about ``max_points`` points: the lowest, the highest and one gap of each stretch, in order.

    So a spike of one step in a hundred thousand is still drawn.
    """
    if len(points) <= max_points:
        return list(points)
    size, kept = -(-len(points) * 3 // max_points), []
    values = [value for _, value in points]
    for start in range(0, len(points), size):
        stretch = values[start : start + size]
        known = list(filter(math.isfinite, stretch))
        selected = {stretch.index(low_or_high) for low_or_high in (min(known), max(known))} if known else set()
        if len(known) < len(stretch):
            selected.add(next(index for index, value in enumerate(stretch) if not math.isfinite(value)))
        kept.extend(points[start + index] for index in sorted(selected))
    return kept


def averaged(points, max_points):
    """Return at most about ``max_points`` points: the mean of each stretch, and one gap where it has any."""
    if len(points) <= max_points:
        return list(points)
    size, kept = -(-len(points) * 2 // max_points), []
    values = [value for _, value in points]
    for start in range(0, len(points), size):
        known = list(filter(math.isfinite, values[start : start + size]))
        kept += [(points[start][0], _mean(known))] if known else []
        kept += [] if len(known) == len(values[start : start + size]) else [(points[start][0], math.nan)]
    return kept


def smoothed(points, width, max_points):
    """Return means over ``width`` neighbouring finite points, at about ``max_points`` places, with gaps."""
    known = [(step, value) for step, value in points if math.isfinite(value)]
    steps = [step for step, _ in known]
    every, half, kept = max(1, -(-len(points) // max_points)), width // 2, []
    for index, (step, value) in enumerate(points):
        begins_gap = not math.isfinite(value) and (index == 0 or math.isfinite(points[index - 1][1]))
        if index % every and index != len(points) - 1 and not begins_gap:
            continue
        centre = bisect_left(steps, step)
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        kept.append((step, _mean(around) if math.isfinite(value) else math.nan))
    return kept


def _mean(values):
    # Not a difference of running sums: after one loss of 1e30 that would be rounding error.
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(each / len(values) for each in values)


def changes(points):
    """Return the points at which a piecewise constant series changes, and the last point."""
    kept = [next(group) for _, group in itertools.groupby(points, operator.itemgetter(1))]
    return kept + points[-1:] if points and kept[-1] != points[-1] else kept


def quantile(values, share):
    """Return a quantile of sorted values, with linear interpolation."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
