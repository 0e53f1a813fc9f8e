"""The speed of a level as a multiple of the baseline's, with a 95 % interval.

A step time alone says little if the machine also does other work, so the runs of all levels take turns, and each round
gives one ratio per level. With y(l, r) the logarithm of the median step time of level l in round r, L levels and R
rounds (a two-way layout without interaction: Fisher, *The design of experiments*, 1935):

    ratio     = exp(mean over r of (y(baseline, r) - y(l, r)))
    s^2       = sum of (y(l, r) - mean of l - mean of r + mean of all)^2 / ((L - 1) (R - 1)), or the mean of e(l, r)^2
                where that is larger
    e(l, r)   = 1.2533 * 1.4826 * median absolute deviation of the logarithms of its steps / sqrt(their number)
    interval  = ratio * exp(+- t(97.5 %, (L - 1) (R - 1)) * s * sqrt(2 / R))

What slows down a whole round is the same for all levels and cancels; what slows down single runs widens the interval.
Three rounds may agree by chance, so the interval is at least as wide as e, the scatter of the steps within the runs,
implies. A level with missing rounds is compared with the baseline alone, in the rounds that both have.
"""

import math
from statistics import mean

from ..report_data import Speed
from .level_differences import t_quantile

#: Half the width of an interval, as a share, above which a speed is not measurable.
MAX_HALF_WIDTH = 0.2


def half_width(interval):
    """Return half the width of a speed's interval, as a share of the speed."""
    low, high = interval
    return math.sqrt(high / low) - 1


def is_measurable(speed):
    """Return whether a ``Speed`` is known well enough to be used; that of a single round has no interval."""
    return speed.interval is None or half_width(speed.interval) <= MAX_HALF_WIDTH


def speeds(times, baseline):
    """Return ``{level: Speed}`` of the levels that share a round with the baseline.

    Args:
        times: ``{level: [(seconds per step of its run, e) of each round, or None, …]}``.
        baseline: one of the levels; its speed is 1.
    """
    count = max(map(len, times.values()), default=0)
    rows = {level: each + [None] * (count - len(each)) for level, each in times.items()}
    whole = {level: each for level, each in rows.items() if count and None not in each}
    found = {}
    for level in rows:
        table = whole if level in whole and baseline in whole else _common(rows, level, baseline)
        if table.get(level):
            found[level] = _speed(table, level, baseline)
    return found


def _common(rows, level, baseline):
    """Return the rows of two levels in the rounds that both have."""
    both = [pair for pair in zip(rows[level], rows.get(baseline, ())) if None not in pair]
    return dict(zip((level, baseline), map(list, zip(*both))))


def _speed(table, level, baseline):
    logs = {row: [math.log(seconds) for seconds, _ in each] for row, each in table.items()}
    errors = [error for each in table.values() for _, error in each]
    difference = mean(logs[baseline]) - mean(logs[level])
    if level == baseline:
        return Speed(1.0, (1.0, 1.0))
    rounds, freedom = len(logs[level]), (len(logs) - 1) * (len(logs[level]) - 1)
    if not freedom:
        return Speed(math.exp(difference), None)
    least = math.sqrt(mean(error * error for error in errors))
    half = t_quantile(freedom) * max(least, _deviation(logs, freedom)) * math.sqrt(2 / rounds)
    return Speed(math.exp(difference), (math.exp(difference - half), math.exp(difference + half)))


def _deviation(logs, freedom):
    """Return the standard deviation of the values after subtracting the means of levels and rounds."""
    of_level = {row: mean(each) for row, each in logs.items()}
    of_round = [mean(each) for each in zip(*logs.values())]
    of_all = mean(of_round)
    rest = [
        value - of_level[row] - of_round[place] + of_all
        for row, each in logs.items()
        for place, value in enumerate(each)
    ]
    return math.sqrt(math.fsum(value * value for value in rest) / freedom)
