"""Which iterations are accumulated into one step of the optimizer.

Owns: ``Turns``: pure arithmetic.
Must not touch: gradients, runners.
The surprise: steps come after the same iterations whether a run was resumed or not, so that schedules keep in step.
What a resumed run cannot accumulate any more, and what the end of the run cuts off, makes its group smaller, and
losses are divided by what is left.
"""

from typing import NamedTuple

from ..errors import AmpValueError


class Turn(NamedTuple):
    """One iteration's place in its group.

    ``size``: how many iterations its group really has. ``is_last``: the optimizer steps after it. ``is_fresh``:
    nothing that was accumulated before belongs to its group. ``lost``: iterations of its group that came before a
    resumed run began.
    """

    size: int
    is_last: bool
    is_fresh: bool
    lost: int


#: Every iteration is a group of its own.
ALONE = Turn(size=1, is_last=True, is_fresh=True, lost=0)


class Turns:
    """Groups of ``length`` iterations, the first of them beginning at iteration 0.

    Args:
        length: a whole number from 1 up.
    """

    def __init__(self, length):
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise AmpValueError("cumulative_iters must be a whole number from 1 up, not {!r}.".format(length))
        self.length = length
        self._start = 0
        self._expected = None

    def take(self, iteration, total=None):
        """Return the ``Turn`` of an iteration.

        Args:
            iteration: counted from 0. One that does not follow the last begins a resumed run.
            total: how many iterations there are in all, or None where nobody knows.

        Raises:
            AmpValueError: the iteration lies beyond the last.
        """
        if total is not None and iteration >= total:
            raise AmpValueError(
                "Iteration {} (counted from 0) came in a run of {} in all: the runner's iter and max_iters do not fit "
                "together.".format(iteration, total)
            )
        is_resumed = iteration != self._expected
        if is_resumed:
            self._start = iteration
        self._expected = iteration + 1
        begin = iteration - iteration % self.length
        end = begin + self.length if total is None else min(begin + self.length, total)
        first = max(begin, self._start)
        return Turn(end - first, iteration + 1 == end, is_resumed, first - begin)
