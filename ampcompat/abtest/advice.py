"""Says which level to take: of the accepted ones the first at the target; of equals the one with less peak memory."""

from . import target
from .number_format import percent, seconds
from .summary import quartiles, steady_seconds, summarize
from .verdict import ACCEPTED, BASELINE, NOT_JUDGED

#: Step times that differ by no more than this share count as equal.
EQUAL_TIME = 0.03

#: The interquartile range of step times, as a share of the median, above which speeds are unreliable.
MAX_TIME_SPREAD = 0.4

#: The share of the baseline's peak memory from which on a difference is mentioned.
LEAST_MEMORY = 0.01

SIDE_BY_SIDE = (
    "Runs were side by side; speed and samples/s are those of a short run of each level, alone, or are missing."
)


def advise(report):
    """Write every run's ``verdict`` and the report's ``advice``, one line each."""
    rows = summarize(report)
    for level, row in rows.items():
        kind, text = row.verdict.kind, row.verdict.text
        report.runs[level].verdict = text if kind == BASELINE else "{}: {}".format(kind, text)
    report.advice = "\n".join([_advice(report, rows)] + _remarks(report, rows))


def best_level(rows):
    """Return the ``LevelSummary`` of the level to take, or None where the baseline is no measure.

    Levels are compared by their time to target, or by their step time where that is unknown or nothing reaches it.
    """
    usable = [row for row in rows.values() if row.verdict.kind in (ACCEPTED, BASELINE) and row.seconds]
    if not any(row.verdict.kind == BASELINE for row in usable):
        return None
    timed = [(_target_seconds(row), row) for row in usable if _target_seconds(row) is not None]
    timed = timed or [(row.seconds, row) for row in usable]
    first = min(seconds for seconds, _ in timed)
    equal = [(seconds, row) for seconds, row in timed if seconds <= first * (1 + EQUAL_TIME)]
    return max(equal, key=lambda each: (each[1].saved or 0, -each[0]))[1]


def _target_seconds(row):
    return None if row.to_target is None else row.to_target.median_seconds


def _advice(report, rows):
    baseline = rows.get(report.baseline)
    if baseline is None or not baseline.steps:
        return "No advice: the baseline {} recorded no steps to compare with.".format(report.baseline)
    if baseline.seconds is None:
        accepted = [row.level for row in rows.values() if row.verdict.kind == ACCEPTED]
        return "No advice: no times were taken. Accepted: {}.".format(", ".join(accepted) or "none")
    best = best_level(rows)
    if best is None:
        sentence = "No advice: the baseline {} is no measure: {}. Fix that first: another level cannot help."
        return sentence.format(report.baseline, baseline.verdict.text)
    others = [row for row in rows.values() if row is not baseline]
    if not others:
        return "No advice: only the baseline was run."
    judged = [row for row in others if row.verdict.kind != NOT_JUDGED]
    if not judged:
        return "No advice: no level was judged ({}: {}).".format(others[0].level, others[0].verdict.text)
    return _recommended(best, baseline, rows, target.describe(report))


def _recommended(best, baseline, rows, goal):
    own, reference = _target_seconds(best), _target_seconds(baseline)
    if best is not baseline:
        timed = "" if reference is None else "; {}: {}".format(baseline.level, seconds(reference))
        if own is None:
            reason = "the fastest of those accepted"
        else:
            accepted = [_target_seconds(row) for row in rows.values() if row.verdict.kind == ACCEPTED]
            is_first = own == min(each for each in accepted if each is not None)
            place = "the first" if is_first else "within {} of the first".format(percent(EQUAL_TIME))
            reason = "{} to reach {} ({}{})".format(place, goal, seconds(own), timed)
        text = "Take {}: {}, {:.2f} times the speed{}."
        return text.format(best.level, reason, best.speed, _memory(best, baseline))
    reason = "is faster here" if reference is None else "reaches {} earlier".format(goal)
    accepted = [row for row in rows.values() if row.verdict.kind == ACCEPTED]
    text = "Take {}: no accepted level {}.".format(baseline.level, reason)
    if accepted:
        text += " Accepted: {}.".format(", ".join(row.level for row in accepted))
    least = max(accepted, key=lambda row: row.saved or 0, default=baseline)
    if (least.saved or 0) > 0 and _memory(least, baseline):
        text += " Short of memory: {}{}.".format(least.level, _memory(least, baseline))
    return text


def _memory(row, baseline):
    """Return how much less memory a level takes; "" where it takes as much."""
    share = row.saved / baseline.peak if row.saved and baseline.peak else 0.0
    told = ", {} {} memory".format(percent(abs(share)), "less" if share > 0 else "more")
    return told if abs(share) >= LEAST_MEMORY else ""


def _remarks(report, rows):
    """Return what is missing, or makes the measured times less reliable, one sentence each."""
    unreliable = [level for level, row in rows.items() if row.seconds and _spread(report.runs[level]) > MAX_TIME_SPREAD]
    remarks = []
    is_reached = any(row.to_target is not None and row.to_target.is_reached for row in rows.values())
    if report.environment.get("target") and not is_reached:
        remarks.append("No level reached the target, {}.".format(target.describe(report)))
    if report.environment.get("jobs", 1) != 1:
        remarks.append(SIDE_BY_SIDE)
    if unreliable:
        sentence = "Step times of {} vary widely: compare speed on a machine that runs nothing else."
        remarks.append(sentence.format(", ".join(unreliable)))
    if str(report.environment.get("device") or "").startswith("cpu"):
        remarks.append("Times are those of a CPU; GPUs rank levels differently. Losses and scales are comparable.")
    return remarks


def _spread(run):
    low, middle, high = quartiles(steady_seconds(run))
    return (high - low) / middle
