"""Which iterations share an optimizer step under gradient accumulation."""


def group_bounds(iteration, steps, total=None):
    """Return ``(first, end)``: iterations ``first`` to ``end - 1`` share an optimizer step with ``iteration``.

    Groups begin at multiples of ``steps``, whether or not a run was resumed, so that schedules stay the same. ``total``
    ends the last group.
    """
    first = iteration - iteration % steps
    end = first + steps
    return first, end if total is None else min(end, total)
