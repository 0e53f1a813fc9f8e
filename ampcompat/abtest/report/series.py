"""Prepares series of (step, value) points for drawing: smooths and thins long ones, leaves gaps for nan and inf."""

import math
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
        # Not a difference of running sums: after one loss of 1e30 that would be rounding error.
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        mean = math.fsum(each / len(around) for each in around) if math.isfinite(value) else math.nan
        kept.append((step, mean))
    return kept


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
