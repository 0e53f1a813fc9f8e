"""What a report says of each level in one row: verdict, end of the loss, speed, memory, skips. Each number once."""

from dataclasses import dataclass
from statistics import median
from typing import Optional

from . import curves
from .verdict import Verdict, judge


@dataclass
class LevelSummary:
    """One level's row; None is unknown.

    ``end``, ``spread``: the mean over seeds of where the loss ends, and half the range. ``seconds``: median step time;
    ``speed``: how many times the baseline's. ``rate``: samples per second. ``peak``: bytes; ``saved``: bytes less than
    the baseline.
    """

    level: str
    verdict: Verdict
    steps: int = 0
    seeds: int = 1
    skipped: int = 0
    end: Optional[float] = None
    spread: Optional[float] = None
    seconds: Optional[float] = None
    speed: Optional[float] = None
    rate: Optional[float] = None
    scale: Optional[float] = None
    peak: Optional[int] = None
    saved: Optional[int] = None


def summarize(report):
    """Return ``{level: LevelSummary}`` of a report."""
    verdicts, baseline = judge(report), report.runs.get(report.baseline)
    reference = None if baseline is None else seconds_per_step(baseline)
    found = {}
    for level, run in report.runs.items():
        row = _row(level, run, verdicts[level])
        row.speed = reference / row.seconds if reference and row.seconds else None
        if baseline is not None and row.peak is not None and baseline.memory.peak_total is not None:
            row.saved = baseline.memory.peak_total - row.peak
        found[level] = row
    return found


def _row(level, run, verdict):
    runs = [run] + run.repeats
    ends = [each for each in map(curves.end_value, runs) if each is not None]
    return LevelSummary(
        level,
        verdict,
        steps=len(run.step_seconds),
        seeds=len(runs),
        skipped=len(run.skipped),
        end=sum(ends) / len(ends) if ends else None,
        spread=(max(ends) - min(ends)) / 2 if len(ends) > 1 else None,
        seconds=seconds_per_step(run),
        rate=_rate(run),
        scale=run.scale[-1][2] if run.scale else None,
        peak=run.memory.peak_total,
    )


def seconds_per_step(run):
    """Return the median step time of a run and its repeats; None without steps."""
    times = steady_seconds(run)
    return median(times) if times else None


def steady_seconds(run):
    """Return the step times of a run and its repeats that count for its speed."""
    return [each.step_seconds[step] for each in [run] + run.repeats for step in steady_steps(each)]


def steady_steps(run):
    """Return the steps whose times count: after the first, neither watched for overflows nor measured for memory.

    Without any the unmeasured ones after the first; without these the last.
    """
    steps = range(1, len(run.step_seconds))
    slow = set(run.measured)
    free = [step for step in steps if step not in slow and step not in set(run.watched)] if run.watched else []
    return free or [step for step in steps if step not in slow] or list(range(len(run.step_seconds)))[-1:]


def _rate(run):
    steps = steady_steps(run)
    seconds = sum(run.step_seconds[step] for step in steps)
    return sum(run.samples[step] for step in steps) / seconds if run.samples is not None and seconds else None
