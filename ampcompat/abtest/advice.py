"""Says which level to take: of those accepted the fastest; within 3 % of it the one with the lowest peak memory."""

from statistics import median

from .number_format import percent, size
from .summary import steady_seconds, summarize
from .verdict import ACCEPTED, BASELINE, NOT_JUDGED, REJECTED

#: Step times that differ by no more than this share count as equal.
EQUAL_TIME = 0.03

#: The interquartile range of step times, as a share of the median, above which speeds are unreliable.
MAX_TIME_SPREAD = 0.4


def advise(report):
    """Write every run's ``verdict`` and the report's ``advice``, one line each."""
    rows = summarize(report)
    for level, row in rows.items():
        kind, text = row.verdict.kind, row.verdict.text
        report.runs[level].verdict = text if kind == BASELINE else "{}: {}".format(kind, text)
    report.advice = "\n".join([_advice(report, rows)] + _remarks(report, rows))


def best_level(rows):
    """Return the ``LevelSummary`` of the level to take, or None where the baseline is no measure."""
    usable = [row for row in rows.values() if row.verdict.kind in (ACCEPTED, BASELINE) and row.seconds]
    if not any(row.verdict.kind == BASELINE for row in usable):
        return None
    fastest = min(row.seconds for row in usable)
    equally_fast = [row for row in usable if row.seconds <= fastest * (1 + EQUAL_TIME)]
    return max(equally_fast, key=lambda row: (row.saved or 0, -row.seconds))


def _advice(report, rows):
    baseline = rows.get(report.baseline)
    if baseline is None or not baseline.steps:
        return "No advice: the baseline {} recorded no steps to compare with.".format(report.baseline)
    best = best_level(rows)
    if best is None:
        sentence = "No advice: at the baseline {} {}. Fix that first: another level cannot help."
        return sentence.format(report.baseline, baseline.verdict.text)
    others = [row for row in rows.values() if row is not baseline]
    if not others:
        return "No advice: only the baseline was run."
    judged = [row for row in others if row.verdict.kind != NOT_JUDGED]
    if not judged:
        return "No advice: no level was judged ({}: {}).".format(others[0].level, others[0].verdict.text)
    return " ".join([_recommended(best, baseline, rows)] + _against(others))


def _recommended(best, baseline, rows):
    saved = _saved(best)
    if best is not baseline:
        text = "Take {}: the fastest accepted level, {:.2f} times the speed of {}{}."
        return text.format(best.level, best.speed, baseline.level, saved and ", " + saved)
    smaller = [row for row in rows.values() if row.verdict.kind == ACCEPTED and row.speed and (row.saved or 0) > 0]
    text = "Take {}: no accepted level is faster here.".format(baseline.level)
    if not smaller:
        return text
    least = max(smaller, key=lambda row: row.saved)
    return text + " Where memory is short, {} {} at {:.2f} times the speed.".format(
        least.level, _saved(least), least.speed
    )


def _against(others):
    """Return why other levels are not to be taken, in at most one sentence for each kind of verdict."""
    found = []
    for kind, verb in ((REJECTED, "Rejected"), (NOT_JUDGED, "Not judged")):
        told = {}
        for row in others:
            if row.verdict.kind == kind and not row.verdict.text.startswith("failed: "):
                told.setdefault(row.verdict.text, []).append(row.level)
        parts = ["{} ({})".format(" ".join(levels), text) for text, levels in told.items()]
        found += ["{}: {}.".format(verb, ", ".join(parts))] if parts else []
    return found


def _saved(row):
    if not row.saved:
        return ""
    share = percent(abs(row.saved) / (row.saved + row.peak))
    return "{} {} ({}) of peak memory".format("saves" if row.saved > 0 else "costs", size(abs(row.saved)), share)


def _remarks(report, rows):
    """Return what makes the measured times less reliable, one sentence each."""
    unreliable = [level for level, row in rows.items() if row.seconds and _spread(report.runs[level]) > MAX_TIME_SPREAD]
    remarks = []
    if unreliable:
        sentence = "Step times of {} vary widely: compare speed on a machine that runs nothing else."
        remarks.append(sentence.format(", ".join(unreliable)))
    if str(report.environment.get("device") or "").startswith("cpu"):
        remarks.append("Times are those of a CPU; GPUs rank levels differently. Losses and scales are comparable.")
    return remarks


def _spread(run):
    times = sorted(steady_seconds(run))
    return (times[len(times) * 3 // 4] - times[len(times) // 4]) / median(times)
