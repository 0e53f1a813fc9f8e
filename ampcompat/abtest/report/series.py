"""Prepares series of (step, value) points for drawing: smooths and thins long ones, leaves gaps for nan and inf."""

import math
from bisect import bisect_left

#: The most points of a curve: more than a figure has pixels in a row.
MAX_POINTS = 600

#: The least number of points of a curve that is drawn smoothed.
SMOOTHED_FROM = 100


def finite(points):
    """Return the points whose value is finite."""
    return [(step, value) for step, value in points if math.isfinite(value)]


def not_finite(points, max_steps=40):
    """Return ``(steps of nan, steps of inf)``, each thinned to at most ``max_steps``."""
    nans = [step for step, value in points if math.isnan(value)]
    infinite = [step for step, value in points if math.isinf(value)]
    return _evenly(nans, max_steps), _evenly(infinite, max_steps)


def _evenly(steps, count):
    if len(steps) <= count:
        return steps
    return [steps[index * (len(steps) - 1) // (count - 1)] for index in range(count)]


def with_gaps(points):
    """Return the points with nan for each value that is not finite: a plotted line breaks there."""
    return [(step, value if math.isfinite(value) else math.nan) for step, value in points]


def thinned(points, max_points=MAX_POINTS):
    """Return at most about ``max_points`` points: the lowest, the highest and one gap of each stretch, in order.

    So a spike of one step in a hundred thousand is still drawn.
    """
    if len(points) <= max_points:
        return list(points)
    size = -(-len(points) * 3 // max_points)
    kept = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        known = [index for index, (_, value) in enumerate(stretch) if math.isfinite(value)]
        gaps = [index for index, (_, value) in enumerate(stretch) if not math.isfinite(value)]
        selected = set(gaps[:1])
        if known:
            selected.add(min(known, key=lambda index: stretch[index][1]))
            selected.add(max(known, key=lambda index: stretch[index][1]))
        kept.extend(stretch[index] for index in sorted(selected))
    return kept


def smoothing_width(points):
    """Return over how many points a curve is averaged: a thirtieth of a long one, 1 otherwise."""
    return len(points) // 30 if len(points) >= SMOOTHED_FROM else 1


def smoothed(points, width, max_points=MAX_POINTS):
    """Return means over ``width`` neighbouring finite points, at about ``max_points`` places, with gaps."""
    known = finite(points)
    steps = [step for step, _ in known]
    half = width // 2
    kept = []
    for step, value in _places(points, max_points):
        if not math.isfinite(value):
            kept.append((step, math.nan))
            continue
        centre = bisect_left(steps, step)
        # Not a difference of running sums: after one loss of 1e30 that would be rounding error.
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        kept.append((step, math.fsum(each / len(around) for each in around)))
    return kept


def _places(points, max_points):
    """Return every n-th point, the last, and the first of each run of values that are not finite."""
    every = -(-len(points) // max_points)
    previous = True
    for index, (step, value) in enumerate(points):
        known = math.isfinite(value)
        if index % every == 0 or index == len(points) - 1 or (previous and not known):
            yield step, value
        previous = known


def changes(points):
    """Return the points at which a piecewise constant series changes, and the last point."""
    kept = [point for index, point in enumerate(points) if index == 0 or points[index - 1][1] != point[1]]
    return kept + points[-1:] if points and kept[-1] != points[-1] else kept


def quantile(values, share):
    """Return a quantile of sorted values, with linear interpolation."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
