"""Recommends a level: of the accepted ones, the first at the target; if equal, the one with less peak memory."""

from ..number_format import milliseconds, percent, seconds
from ..row_names import are_scripts
from . import against_unchanged_script, time_to_target, tolerance
from .summary import MIN_TIMED, emulates_half, find_rounds, find_speeds, summarize
from .verdict import ACCEPTED, BASELINE, NOT_JUDGED, REJECTED

#: Step times that differ by no more than this share count as equal.
EQUAL_TIME = 0.03

#: The interquartile range of step times, as a share of the median, above which speeds are unreliable.
MAX_TIME_SPREAD = 0.4

#: How much longer the baseline's steps may take in one round than in another, as a share, without a warning.
MAX_DRIFT = 0.2

#: The smallest difference in peak memory that counts: as a share of the baseline's, and in bytes.
LEAST_MEMORY, LEAST_BYTES = 0.05, 2**20

EMULATED = "To see which is fastest, run this on a GPU: this CPU emulates half precision."
UNMEASURED = "Which is fastest is not known: no step times could be compared."

EMULATED_SCRIPTS = (
    "On this CPU ampcompat emulates half precision, which takes time, and a rewrite computes with torch's own: the "
    "times say nothing about a GPU."
)

ONCE = "The speed of {} comes from a single round, so it has no interval."


def advise(report):
    """Write every row's ``verdict``, ``speed`` and ``equivalence`` and the report's ``advice``: the verdict in one
    sentence, and remarks, one line each. Return what ``summarize`` returns.
    """
    rows = summarize(report)
    known = find_speeds(report)
    for level, row in rows.items():
        kind, text = row.verdict.kind, row.verdict.text
        report.runs[level].verdict = text if kind == BASELINE else f"{kind}: {text}"
        report.runs[level].equivalence = tolerance.find(report, level, row.verdict)
        report.runs[level].speed = known.get(level)
    lines = _of_scripts(report, rows) if are_scripts(report) else _advice(report, rows)[1]
    lines += [each for each in (against_unchanged_script.tell(report),) if each]
    report.advice = "\n".join(lines + _warnings(report, rows) + _remarks(report, rows))
    return rows


def best_level(rows):
    """Return the ``LevelSummary`` of the recommended level, or None if the baseline is not a usable reference.

    Levels are compared by their time to target, or by their step time if that is unknown or no level reaches it. A
    level that is faster than the baseline only within the scatter of step times counts as equal to it.
    """
    usable = [row for row in rows.values() if row.verdict.kind in (ACCEPTED, BASELINE) and row.speed]
    baseline = next((row for row in usable if row.verdict.kind == BASELINE), None)
    if baseline is None:
        return None
    timed = [(_target_seconds(row), row) for row in usable if _target_seconds(row) is not None]
    timed = timed or [(row.seconds, row) for row in usable]
    reference = next((seconds for seconds, row in timed if row is baseline), 0.0)
    timed = [(max(seconds, reference) if _is_in_scatter(row, baseline) else seconds, row) for seconds, row in timed]
    first = min(seconds for seconds, _ in timed)
    equal = [(seconds, row) for seconds, row in timed if seconds <= first * (1 + EQUAL_TIME)]
    return max(equal, key=lambda each: (_saved(each[1], baseline), -each[0], each[1] is baseline))[1]


def _is_in_scatter(row, baseline):
    """Return whether a level may be only as fast as the baseline, to the target, or per step if that is unknown.

    Decided by the interval of its speed; without one, by whether the middle halves of the two levels' times overlap.
    """
    times = [_target_seconds(row), _target_seconds(baseline)]
    if times == [None, None]:
        times = [row.seconds, baseline.seconds]
    if None in times:
        return False
    if row.interval is not None:
        shorter = times[1] / times[0] / row.speed  # it needs fewer steps to the target
        return row.interval[0] * shorter <= 1.0 <= row.interval[1] * shorter
    ranges = [[time / each.seconds * end for end in each.middle_half] for time, each in zip(times, (row, baseline))]
    return max(low for low, _ in ranges) <= min(high for _, high in ranges)


def _target_seconds(row):
    return None if row.to_target is None else row.to_target.median_seconds


def recommended_level(report, rows):
    """Return the ``LevelSummary`` of the level that ``advise`` says to take, or None."""
    return None if are_scripts(report) else _advice(report, rows)[0]


def _advice(report, rows):
    """Return the ``LevelSummary`` of the recommended level, or None, and the sentences of the advice."""
    baseline = rows.get(report.baseline)
    others = [row for row in rows.values() if row is not baseline]
    reason = _why_none(report, baseline, others)
    if reason is not None:
        return None, [f"No advice: {reason}."]
    best = best_level(rows)
    accepted = [row for row in others if row.verdict.kind == ACCEPTED]
    if emulates_half(report) and accepted:
        return None, _without_speed(accepted, baseline, EMULATED)
    if best is None or (accepted and not any(row.speed for row in accepted)):
        return None, _without_speed(accepted, baseline, UNMEASURED)
    if best is baseline and against_unchanged_script.is_rejected(report):
        return None, _without_speed(accepted, baseline, f"{best.level} has shorter steps, and trains worse than O0.")
    return best, _recommended(best, baseline, rows, time_to_target.describe(report))


def _why_none(report, baseline, others):
    """Return why there is nothing to advise, or None."""
    name = report.baseline
    if baseline is not None and baseline.status == "failed":
        return f"the baseline {name} failed, so that there is nothing to compare with"
    if baseline is None or not baseline.steps:
        return f"the baseline {name} recorded no steps to compare with"
    if not others:
        return "only the baseline was run"
    if baseline.verdict.kind != BASELINE:
        reason = baseline.verdict.text.rstrip(".")
        return f"the baseline {name} is not a usable reference: {reason}. Fix that first: another level cannot help"
    if all(row.verdict.kind == NOT_JUDGED for row in others):
        return f"no level was judged ({others[0].level}: {others[0].verdict.text})"
    if not any(row.verdict.kind == ACCEPTED or row.verdict.progress for row in others):
        return f"the loss of the baseline {name} rises, and no level trains alike. Fix that first"
    return None


def _of_scripts(report, rows):
    """Return whether each script trains like the baseline, one sentence each, and how long their steps take."""
    name, baseline = report.baseline, rows[report.baseline]
    if baseline.verdict.kind != BASELINE:
        return [f"{name} is not a usable reference: {baseline.verdict.text}".rstrip(".") + "."]
    found = []
    for row in rows.values():
        verdict, ends = row.verdict, [each for each in row.verdict.ends.values() if each.is_judged]
        if verdict.kind == ACCEPTED:
            losses, share = "losses" if len(ends) > 1 else "loss", percent(max(map(_share, ends)))
            variation = max(each.variation for each in ends)
            seeds = percent(variation) if variation else "less than batches do"
            better = max((each for each in ends if each.value < -each.allowed), key=_share, default=None)
            if better:
                where = "lower" if better.signed < 0 else "higher"
                told = f"{better.series} by {percent(_share(better))}"
                found.append(f"{row.level} ends {where} than {name}: {told}, seeds differ by {seeds}.")
            else:
                found.append(f"{row.level} trains like {name}: {losses} within {share}, seeds differ by {seeds}.")
        elif verdict.kind == REJECTED:
            found.append(f"{row.level} does not train like {name}: {verdict.text}.")
        elif verdict.kind == NOT_JUDGED:
            sentence = "Whether {} trains like {} was not judged: {}."
            found.append(sentence.format(row.level, name, verdict.text))
        if row.seconds and baseline.seconds and row is not baseline:
            times = milliseconds(row.seconds), milliseconds(baseline.seconds)
            found.append(f"A step takes {times[0]} ms, that of {name} {times[1]} ms.")
    return found + ([EMULATED_SCRIPTS] if emulates_half(report) and any(row.seconds for row in rows.values()) else [])


def _share(difference):
    return abs(difference.signed)


def _without_speed(accepted, baseline, reason):
    """Return the advice if no speeds are known, and why."""
    if not accepted:
        return ["No level was accepted."]
    return [_accepted(accepted)] + _least_memory(accepted, baseline) + [reason]


def _accepted(accepted):
    return "Accepted: {}.".format(", ".join(row.level for row in accepted))


def _least_memory(accepted, baseline):
    least = max(accepted, key=lambda row: _saved(row, baseline), default=baseline)
    return [f"If memory is short: {least.level}{_memory(least, baseline)}."] if _saved(least, baseline) > 0 else []


def _recommended(best, baseline, rows, goal):
    own, reference = _target_seconds(best), _target_seconds(baseline)
    if best is not baseline:
        timed = "" if reference is None else f"; {baseline.level}: {seconds(reference)}"
        if _is_in_scatter(best, baseline):
            reason = f"as fast as {baseline.level} within the scatter of step times"
            return [f"Take {best.level}: {reason}{_memory(best, baseline)}."]
        if own is None:
            reason = "the fastest of those accepted"
        else:
            accepted = [_target_seconds(row) for row in rows.values() if row.verdict.kind == ACCEPTED and row.speed]
            is_first = own == min(each for each in accepted if each is not None)
            place = "the first" if is_first else f"within {percent(EQUAL_TIME)} of the first"
            reason = f"{place} to reach {goal} ({seconds(own)}{timed})"
        text = "Take {}: {}, {:.2f} times the speed{}."
        return [text.format(best.level, reason, best.speed, _memory(best, baseline))]
    reason = "is faster here" if reference is None else f"reaches {goal} earlier"
    accepted = [row for row in rows.values() if row.verdict.kind == ACCEPTED]
    if any(_is_in_scatter(row, baseline) for row in accepted if row.seconds):
        reason += " beyond the scatter of step times"
    lines = [f"Take {baseline.level}: no accepted level {reason}."] + ([_accepted(accepted)] if accepted else [])
    return lines + _least_memory(accepted, baseline)


def _saved(row, baseline):
    """Return how many bytes less than the baseline a level takes; 0 if that is negligible or unknown."""
    if None in (row.peak, baseline.peak):
        return 0
    saved = baseline.peak - row.peak
    return saved if abs(saved) >= max(LEAST_MEMORY * baseline.peak, LEAST_BYTES) else 0


def _memory(row, baseline):
    """Return how much less memory a level takes; "" if it takes as much."""
    saved = _saved(row, baseline)
    told = ", {} {} memory"
    return told.format(percent(abs(saved) / baseline.peak), "less" if saved > 0 else "more") if saved else ""


def _warnings(report, rows):
    """Return remarks on the advice, one sentence each."""
    warnings = []
    untimed = [level for level, row in rows.items() if row.steps and not row.seconds and row.status != "failed"]
    few = [level for level in untimed if report.runs[level].timings != []]
    if few:
        sentence = "Of {}, fewer than {} steps without hooks were timed: raise --steps."
        warnings.append(sentence.format(", ".join(few), MIN_TIMED))
    warnings += [] if emulates_half(report) else _unreliable_times(report, rows)
    target = time_to_target.given_to(report)
    names = time_to_target.known_names(run for _, _, run in report.every_run())
    if target and target[0] not in names:
        warnings.append("No metric {!r} was logged; known: {}.".format(target[0], ", ".join(sorted(names))))
    return warnings


def _unreliable_times(report, rows):
    """Return why speeds are uncertain, one sentence each."""
    warnings, baseline = [], report.runs.get(report.baseline)
    timed = [(level, row.seconds, *row.middle_half) for level, row in rows.items() if row.seconds]
    unreliable = [level for level, seconds, low, high in timed if (high - low) / seconds > MAX_TIME_SPREAD]
    if unreliable:
        sentence = "Step times of {} vary widely: compare speed on a machine that runs nothing else."
        warnings.append(sentence.format(", ".join(unreliable)))
    times = [found[0] for found in find_rounds(baseline) if found] if baseline is not None else []
    if times and max(times) > (1 + MAX_DRIFT) * min(times):
        sentence = "{} took {} to {} ms a step in {} rounds: other work ran on the machine."
        values = milliseconds(min(times)), milliseconds(max(times)), len(times)
        warnings.append(sentence.format(report.baseline, *values))
    return warnings


def _remarks(report, rows):
    """Return what is missing or makes the measured times less reliable, one sentence each."""
    remarks = []
    measured = [row.to_target for row in rows.values() if row.to_target is not None]
    if time_to_target.given_to(report) and measured and not any(each.is_reached for each in measured):
        remarks.append(f"No level reached the target, {time_to_target.describe(report)}.")
    once = [row.level for row in rows.values() if row.speed and row.interval is None]
    if once:
        remarks.append(ONCE.format(", ".join(once)))
    if str(report.environment.get("device") or "").startswith("cpu") and not emulates_half(report):
        remarks.append("Times are those of a CPU; GPUs rank levels differently. Losses and scales are comparable.")
    return remarks
