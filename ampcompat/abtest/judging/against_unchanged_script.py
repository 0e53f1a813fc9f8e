"""Whether training at O0 is bitwise equal to the unchanged script, and if the script computes in half, as good."""

import math

from ..number_format import percent
from ..row_names import UNCHANGED
from .verdict import ACCEPTED, NOT_JUDGED, REJECTED, judge, judge_backwards, seeds_differ
from .verdict import tell as tell_difference

#: The row that is float32 throughout.
FLOAT32 = "O0"

#: Levels whose half weights have float32 masters, by the dtype of the script's own weights.
WITH_MASTERS = {"float16": "O2", "bfloat16": "O5"}


def is_equal(report):
    """Return whether the losses at O0 are bitwise equal to those of the unchanged script; None if unknown."""
    found = _first_difference(report)
    return None if found is None else found == ()


def is_rejected(report):
    """Return whether the unchanged script, which computes in half, is rejected if it is judged against O0."""
    found = judge_backwards(report, FLOAT32) if _first_difference(report) and _is_half(report) else None
    return found is not None and found.kind == REJECTED and found.progress


def _is_half(report):
    return bool(report.environment.get("half_weights") or report.environment.get("casts_itself"))


def tell(report):
    """Return in a few sentences how O0 compares with the unchanged script; None if the report does not have both."""
    found = _first_difference(report)
    if found is None:
        return None
    if not found:
        steps = len(report.runs[FLOAT32].step_seconds)
        return f"O0 has the same losses as the unchanged script, bit for bit, in all of {steps} steps."
    told = "O0 differs from the unchanged script from step {} on ({!r} against {!r}): ".format(*found)
    places, weights = report.environment.get("casts_itself"), report.environment.get("half_weights")
    if weights:
        told += f"the script's weights are {weights}, without float32 masters, and O0 computes in float32."
    elif places:
        told += f"the script casts by itself ({places}), and O0 computes in float32."
    else:
        return told + "the script is not deterministic on this machine, or depends on what runs before it."
    return " ".join([told] + _against_float32(report, weights))


def _against_float32(report, weights):
    """Return how the unchanged script compares with O0, and the command that trains better, which may be missing."""
    found, verdicts = judge_backwards(report, FLOAT32), judge(report)
    if found is None or found.kind == NOT_JUDGED or not found.progress:
        return [_ends(verdicts)]
    end = tell_difference(found.end, "O0's")
    told = [f"Judged against O0, the unchanged script is {found.kind}: {end}."]
    level = WITH_MASTERS.get(weights, FLOAT32)
    level = level if level in verdicts and verdicts[level].kind == ACCEPTED else FLOAT32
    if found.kind != REJECTED or verdicts[level].kind != ACCEPTED:
        return told
    reason = "which keeps float32 masters" if level != FLOAT32 else "float32"
    script = report.environment.get("script")
    command = "." if script is None else f": ampcompat run --opt-level {level} {script}"
    return told + [f"Train at {level}, {reason}{command}"]


def _ends(verdicts):
    """Return how much lower or higher the levels end than the unchanged script, in one sentence."""
    ends = {level: verdict.end for level, verdict in verdicts.items() if verdict.end is not None}
    if not ends:
        return f"Their ends were not compared: {verdicts[FLOAT32].text}."
    told = ", ".join(f"{_lower_or_higher(end.signed)} at {level}" for level, end in ends.items())
    end = next(iter(ends.values()))
    seeds = "without a control, it is not known how much seeds differ" if end.variation is None else seeds_differ(end)
    is_less = all(abs(each.signed) < (each.variation or 0.0) for each in ends.values())
    return f"Against the unchanged script, {end.series} ends {told}; {seeds}{', which is more' if is_less else ''}."


def _lower_or_higher(share):
    much = "far" if math.isinf(share) else percent(abs(share))
    return f"{much} {'higher' if share > 0 else 'lower'}" if share else "the same"


def _first_difference(report):
    """Return (step, loss at O0, loss unchanged) of the first difference, () if there is none, None if unknown."""
    if report.baseline != UNCHANGED or FLOAT32 not in report.runs or UNCHANGED not in report.runs:
        return None
    one, other = report.runs[FLOAT32], report.runs[UNCHANGED]
    if one.identity.get("script") != other.identity.get("script") or not one.step_seconds or not other.step_seconds:
        return None
    if "failed" in (one.status, other.status) or "interrupted" in (one.status, other.status):
        return None
    for mine, plain in zip(one.loss, other.loss):
        if tuple(mine[:2]) != tuple(plain[:2]) or not _same(mine[2], plain[2]):
            return mine[0], mine[2], plain[2]
    return () if len(one.loss) == len(other.loss) else (min(len(one.loss), len(other.loss)), None, None)


def _same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))
