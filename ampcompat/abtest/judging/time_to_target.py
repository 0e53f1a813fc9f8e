"""Time to target, as DAWNBench and MLPerf measure it: steps, samples and seconds until a series reaches a value.

The target is the end of the baseline's loss with the same seed, within 1 %. It is the first loss that falls; there is
no target if every loss rises. A run that ends above it, according to the table, has not reached it, even if it was
below before. Or the target is a value of a loss or of a logged metric, such as ``loss=0.3`` or ``accuracy=0.9``. A loss
falls to it; a metric rises to it if the baseline begins below. Medians of the last tenth of the run's steps are used
(at least five losses, one value of a metric), so that one lucky batch does not count. At its last step, the value of a
level is the end shown in the table: the baseline's final loss plus the median difference in the last window. This does
not apply to an interrupted run. Seconds are steps times the median step time of the level, since steps with hooks are
slower.
"""

import math
from dataclasses import dataclass, field
from statistics import median
from typing import List, Optional

from ...errors import AmpValueError
from . import curves

#: How far above the baseline's final loss the target is, as a share.
TOLERANCE = 0.01

#: A window's median is the median of at most so many blocks' medians, each of about as many values: fast for long
#: series.
BLOCKS = 20


@dataclass
class TimeToTarget:
    """When a level reached the target: one value per seed that did. ``seeds``: how many were run."""

    seeds: int
    steps: List[int] = field(default_factory=list)
    samples: List[int] = field(default_factory=list)
    seconds: List[float] = field(default_factory=list)

    @property
    def is_reached(self):
        """Whether more than half of the seeds reached it."""
        return 2 * len(self.steps) > self.seeds

    @property
    def median_seconds(self):
        """The median over the seeds that reached it; None if it was not reached or times are unknown."""
        return median(self.seconds) if self.is_reached and self.seconds else None


def parse(text):
    """Return (name, value) of a target such as "loss=0.3"."""
    name, _, value = str(text).rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not name.strip() or not math.isfinite(number):
        message = "The target {!r} is not NAME=NUMBER, such as loss=0.3 or accuracy=0.9."
        raise AmpValueError(message.format(text))
    return name.strip(), number


def given_to(report):
    """Return (name, value) of the target that a report was given; None if it is the baseline's final loss."""
    text = report.environment.get("target")
    return parse(text) if text else None


def describe(report):
    """Return the display name of a report's target."""
    given = given_to(report)
    return "{} = {:g}".format(*given) if given else f"the baseline's final {_loss_name(report)}"


def until(report):
    """Return the end of a sentence on a report's target: what reaches it."""
    given = given_to(report)
    if given:
        return "{} reaches {:g}".format(*given)
    return f"{_loss_name(report)} is within {100 * TOLERANCE:g} % of the baseline's final one"


def _loss_name(report):
    """Return the display name of the loss whose end is the target."""
    baseline = report.runs.get(report.baseline)
    name = None if baseline is None else _falling(baseline)
    return "loss" if name is None else curves.describe(name, baseline)


def measure(runs, references, given, seconds_per_step):
    """Return the ``TimeToTarget`` of a level; None if there is no target.

    Args:
        runs, references: of the level and of the baseline, by seed; may be the same.
        given: (name, value), or None for the baseline's final loss.
        seconds_per_step: of the level, or None.
    """
    found = TimeToTarget(seeds=0)
    for run, reference in zip(runs, references):
        wanted = _given(run, reference, *given) if given else _end(reference)
        if wanted is None:
            continue
        found.seeds += 1
        step = _first_step(run, reference, *wanted, is_end=not given)
        if step is not None:
            found.steps.append(step + 1)
            found.samples += [sum(run.samples[: step + 1])] if run.samples is not None else []
            found.seconds += [(step + 1) * seconds_per_step] if seconds_per_step else []
    return found if found.seeds else None


def known_names(runs):
    """Return ``{display name: name of a series}`` of what runs recorded; "loss" is the first loss."""
    names = {curves.describe(name, run): name for run in runs for name in curves.series_names(run)}
    return dict(names, loss=("loss", 0))


def _given(run, reference, own, value):
    """Return (series, value, whether it rises) of a given target; None if neither run recorded it."""
    name = known_names([run, reference]).get(own)
    if name is None:
        return None
    first = next((each for _, each in curves.points(reference, name) if math.isfinite(each)), None)
    return name, value, name[0] == "metric" and first is not None and first < value


def _falling(run):
    """Return the name of the first loss of a run that does not rise; None without one."""
    for name in curves.series_names(run):
        first, last = curves.begin_and_end(run, name) or (0.0, 1.0)
        if name[0] == "loss" and last <= first:
            return name
    return None


def _end(reference):
    """Return (series, value, False) for the end of a baseline run; None if it recorded nothing finite."""
    name = _falling(reference)
    ends = [value for _, value in _smoothed(reference, reference, name)] if name else []
    if not ends or not math.isfinite(ends[-1]):
        return None
    return name, ends[-1] + TOLERANCE * abs(ends[-1]), False


def _first_step(run, reference, name, value, rises, is_end) -> Optional[int]:
    """Return the step at which a series reaches a value: by its smoothed values, or by its end as in the table.

    ``is_end``: the value is the baseline's end, so a run that does not end there has not reached it.
    """

    def is_reached(each):
        return each >= value if rises else each <= value

    found = _smoothed(run, reference, name)
    step = next((step for step, each in found if is_reached(each)), None)
    is_whole = run.status != "interrupted" and len(run.step_seconds) >= len(reference.step_seconds)
    if not found or not is_whole:
        return None if is_end else step
    if run is reference or not (is_end or step is None):
        return step
    windows = curves.compare(run, reference, name)
    is_at_end = bool(windows) and is_reached(curves.end_value(reference, name) + windows[-1].gap)
    return found[-1][0] if is_at_end and step is None else step if is_at_end or not is_end else None


def _smoothed(run, reference, name):
    """Return [(step, median of the last window up to it), …], without skipped steps; windows are the reference's."""
    least = curves.MIN_WIDTH if name[0] == "loss" else 1
    width = max(least, len(curves.curve(reference, name)) // curves.WINDOWS)
    size = max(1, width // BLOCKS)
    points = curves.counted_points(run, name)
    blocks = [points[start : start + size] for start in range(0, len(points) - size + 1, size)]
    every = max(1, size // BLOCKS)
    medians = [curves.finite_median([value for _, value in block[::every]]) for block in blocks]
    count = width // size
    return [
        (blocks[last][-1][0], curves.finite_median(medians[last - count + 1 : last + 1]))
        for last in range(count - 1, len(blocks))
    ]
