"""Prepares series of (step, value) points for drawing: smooths and thins long series, with gaps for nan and inf.

Thinning keeps the lowest and the highest value of each stretch, as in M4 (Jugel, Jerzak, Hackenbroich, Markl, *M4: a
visualization-oriented time series data aggregation*, VLDB 2014), so that the drawn line covers the same pixels.
"""

import math
from bisect import bisect_left


def thinned(points, max_points):
    """Return at most about ``max_points`` points: the lowest, the highest and one gap of each stretch, in order.

    So a spike in one of a hundred thousand steps is still drawn.
    """
    kept = []
    for _, known, gaps in _stretches(points, max_points, 3):
        values = [value for _, value in known]
        extremes = [known[values.index(each)] for each in (min(values), max(values))] if known else []
        kept += sorted(set(extremes + gaps[:1]))
    return kept


def averaged(points, max_points):
    """Return at most ``max_points`` points: the mean of each stretch, and one gap if it has any."""
    kept = []
    for step, known, gaps in _stretches(points, max_points, 2):
        kept += ([(step, _mean([value for _, value in known]))] if known else []) + [(step, math.nan) for _ in gaps[:1]]
    return kept


def _stretches(points, max_points, kept):
    """Yield (first step, finite points, others) of stretches, of which ``kept`` points each make ``max_points``."""
    size = 1 if len(points) <= max_points else -(-len(points) // (max_points // kept))
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        known = [point for point in stretch if math.isfinite(point[1])]
        yield stretch[0][0], known, [point for point in stretch if not math.isfinite(point[1])]


def smoothed(points, width):
    """Return means over ``width`` neighbouring finite points; gaps stay."""
    known = [(step, value) for step, value in points if math.isfinite(value)]
    steps, half, kept = [step for step, _ in known], width // 2, []
    for step, value in points:
        centre = bisect_left(steps, step)
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        kept.append((step, _mean(around) if math.isfinite(value) else math.nan))
    return kept


def _mean(values):
    # Not a difference of running sums: after one loss of 1e30, that would be only rounding error.
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(each / len(values) for each in values)
