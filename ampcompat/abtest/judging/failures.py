"""Reasons to reject a run by itself: it failed, its loss is not finite, or too many steps were skipped."""

import math

from . import curves

#: The first steps, whose skips do not count since a dynamic scale may start too large; the largest share of skips.
SCALE_WARM_UP, MAX_SKIPPED_SHARE = 25, 0.1

#: Number of consecutive steps without a finite loss after which a run has failed, or at its end if all were skipped.
MAX_NONFINITE_STEPS, NONFINITE_END = 20, 5


def failure(run):
    """Return why a run is rejected regardless of the baseline, or None."""
    for index, each in enumerate([run] + run.repeats):
        found = _failure_of_one(each)
        if found:
            return found + (f" (repeat {index + 1})" if index else "")
    return None


def _failure_of_one(run):
    if run.status == "failed":
        return "failed: {}".format(run.error or "it raised an error")
    starts = nonfinite_starts(run)
    if starts:
        return "its {} {} from step {} on".format(*_nonfinite_losses(run, starts), min(starts.values()))
    steps, skipped = len(run.step_seconds), len(run.skipped)
    if steps and skipped == steps:
        return f"every one of its {skipped} steps was skipped"
    late = [step for step in run.skipped if step >= SCALE_WARM_UP]
    if late and skipped > MAX_SKIPPED_SHARE * steps:
        return f"{skipped} of its {steps} steps were skipped, the last at step {late[-1]}"
    return None


def nonfinite_starts(run):
    """Return ``{loss_id: step}``: since when the loss is not finite, for ``MAX_NONFINITE_STEPS`` or until the end."""
    by_loss = {}
    for step, loss_id, value in () if all(map(math.isfinite, run.loss.columns[-1])) else run.loss:
        by_step = by_loss.setdefault(loss_id, {})
        by_step[step] = by_step.get(step, True) and math.isfinite(value)
    found = {loss_id: _nonfinite_start(by_step, set(run.skipped)) for loss_id, by_step in by_loss.items()}
    return {loss_id: start for loss_id, start in found.items() if start is not None}


def _nonfinite_start(by_step, skipped):
    """Return that step of a loss from ``{step: whether it is finite}``, or None."""
    start = None
    for step, is_finite in sorted(by_step.items()):
        start = None if is_finite else step if start is None else start
        if start is not None and step - start + 1 >= MAX_NONFINITE_STEPS:
            return start
    to_the_end = [step for step in by_step if start is not None and step >= start]
    taken = [step for step in to_the_end if step not in skipped]
    return start if taken or len(to_the_end) >= NONFINITE_END else None


def _nonfinite_losses(run, starts):
    """Return which losses are not finite from their steps on, and their values: ("loss 1", "is nan")."""
    names = [curves.describe(("loss", loss_id), run) for loss_id in sorted(starts)]
    values = [value for step, loss_id, value in run.loss if step >= starts.get(loss_id, step + 1)]
    kind = "nan" if any(map(math.isnan, values)) else "inf"
    return " and ".join(names), "{} {}".format("is" if len(names) == 1 else "are", kind)
