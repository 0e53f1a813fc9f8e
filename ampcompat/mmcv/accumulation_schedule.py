"""Which iterations of a runner share an optimizer step, also if a run is resumed in the middle of a group."""

from typing import NamedTuple

from ..errors import AmpValueError


class GroupPosition(NamedTuple):
    """One iteration's place in the group of iterations that share an optimizer step.

    ``size``: the number of iterations that the group actually accumulates; its losses are divided by it. ``is_last``:
    the optimizer steps after this iteration. ``starts_run``: this is the first iteration of a new or resumed run, and
    existing gradients do not belong to its group. ``num_missing``: the number of iterations of its group before the run
    was resumed.
    """

    size: int
    is_last: bool
    starts_run: bool
    num_missing: int


#: An iteration without accumulation: each backward pass has its own step.
NO_ACCUMULATION = GroupPosition(size=1, is_last=True, starts_run=True, num_missing=0)


class AccumulationSchedule:
    """Groups of ``length`` iterations, the first of them beginning at iteration 0."""

    def __init__(self, length):
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise AmpValueError(f"cumulative_iters must be a whole number of at least 1, not {length!r}.")
        self.length = length
        self._run_start = 0
        self._next_iteration = None

    def advance(self, iteration, total=None):
        """Return the ``GroupPosition`` of the next iteration.

        Args:
            iteration: counted from 0. If it does not follow the previous one, a resumed run begins.
            total: the number of iterations of the whole run, or None if unknown.

        Raises:
            AmpValueError: the iteration is beyond the last one.
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
        # Groups begin at multiples of the length, whether or not a run was resumed, so that schedules stay the same.
        begin = iteration - iteration % self.length
        end = begin + self.length if total is None else min(begin + self.length, total)
        first = max(begin, self._run_start)
        return GroupPosition(end - first, iteration + 1 == end, starts_run, first - begin)
