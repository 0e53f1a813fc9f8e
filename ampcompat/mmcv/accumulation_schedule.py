"""Which iterations of a runner share an optimizer step, also after a run was resumed in the middle of a group."""

from typing import NamedTuple

from ..errors import AmpValueError
from ..support.iterations_per_step import group_bounds


class GroupPosition(NamedTuple):
    """One iteration's place in the group of iterations that share an optimizer step.

    ``size``: how many iterations the group really accumulates; its losses are divided by it. ``is_last``: the optimizer
    steps after this iteration. ``starts_run``: it is the first iteration of a new or resumed run, and gradients left
    from before do not belong to its group. ``num_missing``: iterations of its group before a resumed run began.
    """

    size: int
    is_last: bool
    starts_run: bool
    num_missing: int


#: An iteration without accumulation: backward pass and step belong together.
NO_ACCUMULATION = GroupPosition(size=1, is_last=True, starts_run=True, num_missing=0)


class AccumulationSchedule:
    """Groups of ``length`` iterations, the first of them beginning at iteration 0."""

    def __init__(self, length):
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise AmpValueError(f"cumulative_iters must be a whole number from 1 up, not {length!r}.")
        self.length = length
        self._run_start = 0
        self._next_iteration = None

    def advance(self, iteration, total=None):
        """Return the ``GroupPosition`` of the next iteration.

        Args:
            iteration: counted from 0. One that does not follow the previous one begins a resumed run.
            total: the number of iterations of the whole run, or None where it is not known.

        Raises:
            AmpValueError: the iteration lies beyond the last.
        """
        if total is not None and iteration >= total:
            raise AmpValueError(
                f"Iteration {iteration} (counted from 0) does not belong to a run of {total}: the runner's iter and "
                "max_iters contradict each other."
            )
        starts_run = iteration != self._next_iteration
        if starts_run:
            self._run_start = iteration
        self._next_iteration = iteration + 1
        begin, end = group_bounds(iteration, self.length, total)
        first = max(begin, self._run_start)
        return GroupPosition(end - first, iteration + 1 == end, starts_run, first - begin)
