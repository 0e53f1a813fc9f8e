"""What a report says about each level in one row: verdict, end of the loss, speed, memory, skips."""

import math
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Dict, Optional, Tuple

from . import against_unchanged_script, curves, time_to_target
from .failures import nonfinite_starts
from .speed_ratio import is_measurable, speeds
from .verdict import Verdict, judge

#: The number of steps after a slow one that are slower than later ones, by up to a tenth in small networks.
SETTLING = 5

#: The fewest undisturbed steps for which step times are given: with fewer, a speed may be wrong by several times.
MIN_TIMED = 10


@dataclass
class LossEnd:
    """Where a loss ends; None means unknown.

    ``end``: the mean over the seeds that all levels share. For a level that was compared with the baseline, it is the
    baseline's end plus ``difference``, which is a share, so that the two agree. ``spread``: half the range over all of
    its seeds that ended.
    """

    end: Optional[float] = None
    difference: Optional[float] = None
    spread: Optional[float] = None


@dataclass
class LevelSummary:
    """One level's row; None means unknown.

    ``losses``: ``{loss_id: LossEnd}``. ``seconds``: median step time; ``middle_half``: the quartiles below and above
    it; ``speed``: how many times the baseline's, with the 95 % ``interval``, if there is one; no speed if the interval
    is too wide. ``rate``: samples per second. ``peak``: bytes.
    """

    level: str
    verdict: Verdict
    steps: int = 0
    skipped: int = 0
    losses: Dict[int, LossEnd] = field(default_factory=dict)
    seconds: Optional[float] = None
    middle_half: Optional[Tuple[float, float]] = None
    speed: Optional[float] = None
    interval: Optional[Tuple[float, float]] = None
    rate: Optional[float] = None
    peak: Optional[int] = None
    to_target: Optional[time_to_target.TimeToTarget] = None
    status: str = "ok"

    @property
    def kind(self):
        """The verdict in a word, or how the run ended if it did not end by itself."""
        return self.status if self.status in ("failed", "interrupted") else self.verdict.kind


def summarize(report):
    """Return ``{level: LevelSummary}`` of a report."""
    verdicts, baseline = judge(report), report.runs.get(report.baseline)
    shared = max([1 + len(run.repeats) for run in report.runs.values() if run is not baseline], default=None)
    known, found, peak = find_speeds(report), {}, _peak_of_baseline(report)
    for level, run in report.runs.items():
        row = _row(level, run, verdicts[level], shared)
        if level in known:
            row.speed = known[level].ratio if is_measurable(known[level]) else None
            row.interval = known[level].interval
        if level == report.baseline:
            row.peak = peak
        if baseline is not None:
            runs, references = ([each] + each.repeats for each in (run, baseline))
            target = time_to_target.given_to(report)
            row.to_target = time_to_target.measure(runs[:shared], references, target, row.seconds)
        for loss_id, ending in row.losses.items():
            difference = row.verdict.ends.get(("loss", loss_id))
            if difference is not None:
                ending.difference = difference.signed
                whole = _mean(_ends(baseline, loss_id)[: 1 + len(run.repeats)])
                ending.end = whole + difference.gap if math.isfinite(difference.gap) else ending.end
        found[level] = row
    return found


def _peak_of_baseline(report):
    """Return the baseline's peak memory; for an unchanged script, which is not measured, that of an equal O0."""
    baseline = report.runs.get(report.baseline)
    if baseline is not None and baseline.memory.peak_total is None and against_unchanged_script.is_equal(report):
        return report.runs[against_unchanged_script.FLOAT32].memory.peak_total
    return None if baseline is None else baseline.memory.peak_total


def emulates_half(report):
    """Return whether half precision was emulated on a CPU, so that times say nothing about other devices."""
    return "emulated" in str(report.environment.get("device") or "")


def _row(level, run, verdict, shared):
    times = quartiles(steady_seconds(run))
    return LevelSummary(
        level,
        verdict,
        steps=len(run.step_seconds),
        skipped=len(run.skipped),
        losses={loss_id: _loss_end(run, loss_id, shared) for loss_id in sorted(run.loss_ids())},
        seconds=seconds_per_step(run),
        middle_half=times and (times[0], times[2]),
        rate=_rate(run),
        peak=run.memory.peak_total,
        status=run.status,
    )


def _loss_end(run, loss_id, shared):
    ends, whole = _ends(run, loss_id), _ends(run, loss_id, but="interrupted")
    is_known = len(whole) > 1 and all(map(math.isfinite, whole))
    return LossEnd(_mean(ends[:shared]), spread=(max(whole) - min(whole)) / 2 if is_known else None)


def _ends(run, loss_id, but=None):
    """Return where a loss of a run, and of its repeats, ends; nan if it is not finite at the end.

    ``but``: a status; runs with this status are left out.
    """
    name = ("loss", loss_id)
    runs = [each for each in [run] + run.repeats if each.status != but]
    ends = [math.nan if loss_id in nonfinite_starts(each) else curves.end_value(each, name) for each in runs]
    return [each for each in ends if each is not None]


def _mean(values):
    return mean(values) if values else None


def seconds_per_step(run):
    """Return the geometric mean of the median step times of the timed runs; None if there are too few."""
    known = [found[0] for found in find_rounds(run) if found]
    return math.exp(mean(map(math.log, known))) if known else None


def find_rounds(run):
    """Return (median step time, error of its logarithm) of each timed run; None if unknown."""
    if not steady_seconds(run):
        return []
    times = [[each.step_seconds[step] for step in steady_steps(each)] for each in _timed(run)]
    logs = [list(map(math.log, each)) if each and min(each) > 0 else None for each in times]
    return [each and (median(seconds), curves.error_of_median(each)) for seconds, each in zip(times, logs)]


def find_speeds(report):
    """Return ``{level: Speed}`` of a report, from rounds in which the levels took turns with short runs."""
    baseline = report.runs.get(report.baseline)
    has_short = baseline is not None and baseline.timings is not None
    alike = {level: run for level, run in report.runs.items() if (run.timings is not None) == has_short}
    return speeds({level: find_rounds(run) for level, run in alike.items()}, report.baseline)


def quartiles(values):
    """Return the lower quartile, the median and the upper quartile; None without values."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 4], median(ordered), ordered[len(ordered) * 3 // 4]) if ordered else None


def steady_seconds(run):
    """Return the step times of a run and its repeats that count for its speed; none if there are too few."""
    found = [each.step_seconds[step] for each in _timed(run) for step in steady_steps(each)]
    return found if len(found) >= MIN_TIMED else []


def _timed(run):
    """Return the runs whose times count: the short runs that took turns with other levels, if there are any."""
    return [run] + run.repeats if run.timings is None else run.timings


def steady_steps(run):
    """Return the steps whose times count: not slow steps, and not the ``SETTLING`` steps after a slow one.

    Slow steps are the first one, and those with hooks for overflows or memory.
    """
    slow = {step + after for step in {0}.union(run.measured, run.watched) for after in range(SETTLING + 1)}
    return [step for step in range(1, len(run.step_seconds)) if step not in slow]


def _rate(run):
    timed, seconds = (_timed(run) or [run])[0], seconds_per_step(run)
    steps = steady_steps(timed)
    if timed.samples is None or not seconds or not steps:
        return None
    return mean(timed.samples[step] for step in steps) / seconds
