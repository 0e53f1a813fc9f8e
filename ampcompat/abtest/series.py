"""Series of steps made fit for drawing: smoothed where long, thinned, with gaps where a value is not finite.

Owns: what is left out of a curve that a screen could not show anyway.
Must not touch: what a table or a verdict says; those count every step.
The surprise: thinning keeps the lowest and the highest point of each stretch, so a spike of one step in a hundred
thousand is still seen. And a mean is taken over the stretch itself, never as a difference of running sums: after one
loss of 1e30 those would be rounding error.
"""

import math
from bisect import bisect_left

#: Points that a curve keeps at most: more than a figure has columns of dots.
MOST = 600

#: From so many points on a curve is drawn smoothed, with the raw one faint behind it.
LONG = 100


def finite(points):
    """Return the points whose value is finite."""
    return [(step, value) for step, value in points if math.isfinite(value)]


def not_finite(points, most=40):
    """Return ``(steps of nan, steps of inf)``, each thinned to at most ``most``."""
    nans = [step for step, value in points if math.isnan(value)]
    infinite = [step for step, value in points if math.isinf(value)]
    return _spread(nans, most), _spread(infinite, most)


def _spread(steps, most):
    if len(steps) <= most:
        return steps
    return [steps[index * (len(steps) - 1) // (most - 1)] for index in range(most)]


def with_gaps(points):
    """Return the points with nan for each value that is not finite: a plotted line breaks there."""
    return [(step, value if math.isfinite(value) else math.nan) for step, value in points]


def thinned(points, most=MOST):
    """Return at most about ``most`` of the points: of each stretch the lowest, the highest and one gap, in order."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) * 3 // most)
    kept = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        known = [index for index, (_, value) in enumerate(stretch) if math.isfinite(value)]
        chosen = {index for index, (_, value) in enumerate(stretch) if not math.isfinite(value)}
        chosen = set(sorted(chosen)[:1])  # one gap tells that there is one
        if known:
            chosen.add(min(known, key=lambda index: stretch[index][1]))
            chosen.add(max(known, key=lambda index: stretch[index][1]))
        kept.extend(stretch[index] for index in sorted(chosen))
    return kept


def smoothing_width(points):
    """Return over how many points a curve is averaged: a thirtieth of it where it is long, else 1."""
    return len(points) // 30 if len(points) >= LONG else 1


def smoothed(points, width, most=MOST):
    """Return means over ``width`` neighbouring finite points, at no more than ``most`` places, gaps kept."""
    known = finite(points)
    steps = [step for step, _ in known]
    half = width // 2
    kept = []
    for step, value in _places(points, most):
        if not math.isfinite(value):
            kept.append((step, math.nan))
            continue
        centre = bisect_left(steps, step)
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        kept.append((step, math.fsum(each / len(around) for each in around)))
    return kept


def _places(points, most):
    """Return every n-th point, the last, and the first of each run of values that are not finite."""
    every = -(-len(points) // most)
    previous = True
    for index, (step, value) in enumerate(points):
        known = math.isfinite(value)
        if index % every == 0 or index == len(points) - 1 or (previous and not known):
            yield step, value
        previous = known


def changes(points):
    """Return the corners of a staircase: the first point of each stretch of one value, and the last of all."""
    kept = [point for index, point in enumerate(points) if index == 0 or points[index - 1][1] != point[1]]
    return kept + points[-1:] if points and kept[-1] != points[-1] else kept


def quantile(values, share):
    """Return the value under which that share of the sorted values lies, between two of them in proportion."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
