"""``--tolerance``: whether a row ends within it of the baseline, by the interval of the difference, not by a test of 0.

The difference is that of the end of the loss (of several losses, the worst one), or of the metric that the
target names, as a share of the baseline's. Its interval is the 95 % t interval from three seeds on. One or two seeds
say nothing about their scatter, but runs with equal seeds do not differ by more than runs with different ones. So the
interval is then 3 root mean squares of the differences between baseline seeds, divided by the root of their number: too
wide rather than too narrow. Equivalence is shown if the interval lies within the tolerance, refuted if it lies outside,
and otherwise not shown with this number of seeds (Schuirmann, *A comparison of the two one-sided tests procedure*,
1987; a 95 % interval instead of his 90 % is stricter). With s the standard deviation of the difference of one seed, the
number of seeds that would be enough is the least n with t(97.5 %, n - 1) s / sqrt(n) <= tolerance - |difference|, if
the difference stays what it is.
"""

import math

from ...errors import AmpValueError
from ..number_format import percent, signed_percent
from ..report_data import Equivalence
from . import time_to_target
from .failures import nonfinite_starts
from .level_differences import DEVIATIONS, t_quantile

SHOWN, REFUTED, NOT_SHOWN = "shown", "refuted", "not shown"

#: From the best.
RESULTS = (SHOWN, NOT_SHOWN, REFUTED)

#: The largest number of seeds that is suggested.
MOST_SEEDS = 10000


def parse(text):
    """Return the tolerance from a string such as "0.01", as a share.

    Raises:
        AmpValueError: it is not a number above 0 and below 1.
    """
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < 1.0:
        raise AmpValueError(f"The tolerance {text!r} is not a share between 0 and 1, such as 0.01 for 1 %.")
    return value


def given_to(report):
    """Return the tolerance that a report was given, as a share, or None."""
    text = report.environment.get("tolerance")
    return None if text is None else parse(text)


def find(report, level, verdict):
    """Return the ``Equivalence`` of a row; None for the baseline, and if the report has no tolerance."""
    tolerance = given_to(report)
    if tolerance is None or level == report.baseline:
        return None
    run, names = report.runs[level], _compared(report)
    ends = [each for name, each in verdict.ends.items() if (name in names if names else name[0] == "loss")]
    found = [of(each, tolerance) for each in ends]
    if found:
        return max(found, key=lambda each: (RESULTS.index(each.result), abs(each.difference)))
    seeds = 1 + len(run.repeats)
    if nonfinite_starts(run):
        return Equivalence(REFUTED, math.inf, (math.inf, math.inf), seeds)
    return Equivalence(NOT_SHOWN, seeds=seeds)


def _compared(report):
    """Return the series of the target, as a list; empty for all losses."""
    target = time_to_target.given_to(report)
    runs = [run for _, _, run in report.every_run()]
    return [time_to_target.known_names(runs).get(target[0])] if target else []


def of(difference, tolerance):
    """Return the ``Equivalence`` for the ``Difference`` of an end."""
    value, half, seeds = difference.signed, difference.uncertainty, difference.pairs
    if not math.isfinite(value):
        return Equivalence(REFUTED, value, (value, value), seeds)
    if difference.variation is None and seeds < 3:  # without a control, nothing is known about other seeds
        return Equivalence(NOT_SHOWN, value, None, seeds, None)
    if seeds < 3:
        half = max(half, DEVIATIONS * difference.apart / math.sqrt(seeds))
    deviation = half * math.sqrt(seeds) / (t_quantile(seeds - 1) if seeds >= 3 else DEVIATIONS)
    low, high = value - half, value + half
    if -tolerance <= low and high <= tolerance:
        return Equivalence(SHOWN, value, (low, high), seeds, seeds)
    if low > tolerance or high < -tolerance:
        return Equivalence(REFUTED, value, (low, high), seeds)
    return Equivalence(NOT_SHOWN, value, (low, high), seeds, _seeds_needed(seeds, deviation, tolerance - abs(value)))


def _seeds_needed(seeds, deviation, margin):
    """Return the least number of seeds, at least 3, with an interval of at most ``margin`` to each side, or None."""
    if margin <= 0.0:
        return None
    most = range(max(3, seeds), MOST_SEEDS)
    return next((count for count in most if t_quantile(count - 1) * deviation <= margin * math.sqrt(count)), None)


def tell(name, found, tolerance):
    """Return a result in one sentence. ``name``: of the row; ``tolerance``: as a share."""
    seeds = "{} seed{}".format(found.seeds, "" if found.seeds == 1 else "s")
    told = f"{name}: equivalence within {percent(tolerance)} is {found.result}"
    told += f" with {seeds}" if found.result == NOT_SHOWN else ""
    if found.interval is not None:
        values = [signed_percent(each) for each in (found.difference,) + tuple(found.interval)]
        told += ": the difference is {} ({} to {})".format(*values)
    if found.result == NOT_SHOWN and found.seeds_needed is not None:
        most = "" if found.seeds >= 3 else "at most "
        return told + f"; {most}{found.seeds_needed} seeds would be enough, if the difference stays the same"
    return told + ("; no number of seeds would show it" if found.result == NOT_SHOWN and found.interval else "")
