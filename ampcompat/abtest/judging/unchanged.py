"""Whether training at O0 is bitwise equal to the unchanged script."""

import math

from ..row_names import UNCHANGED

#: The row that is float32 throughout.
FLOAT32 = "O0"


def is_equal(report):
    """Return whether the losses at O0 are bitwise equal to those of the unchanged script; None if unknown."""
    found = _first_difference(report)
    return None if found is None else found == ()


def tell(report):
    """Return in one sentence how O0 compares with the unchanged script; None if the report does not have both."""
    found = _first_difference(report)
    if found is None:
        return None
    if not found:
        steps = len(report.runs[FLOAT32].step_seconds)
        return f"O0 has the same losses as the unchanged script, bit for bit, in all of {steps} steps."
    told = "O0 differs from the unchanged script from step {} on ({!r} against {!r}): ".format(*found)
    places = report.environment.get("casts_itself")
    if places:
        return told + f"the script casts by itself ({places}), and O0 computes in float32."
    return told + "the script is not deterministic on this machine, or depends on what runs before it."


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
