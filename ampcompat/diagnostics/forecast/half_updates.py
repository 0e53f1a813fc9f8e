"""Repeats every optimizer step with half weights, to find what O3 would do with the same gradients.

A twin of each optimizer, of the same class, has float16 copies of the params and uses the float32 gradients rounded to
float16, for ``STEPS`` steps. For each param, with w the weights and t the twin's, before and after these steps,

    kept = <t_last - t_first, w_last - w_first> / |w_last - w_first|**2

is 1 if half weights follow, 0 if every update is under half a unit in the last place, and far from both, or nan, if the
optimizer's own arithmetic fails in half: Adam's eps of 1e-8 is 0 in float16, and so is the square of a gradient under
2**-12.
"""

import torch

from ...observers.optimizer_twin import OptimizerTwin
from ...observers.values import read_together

#: The number of steps of a twin.
STEPS = 20


class HalfUpdates:
    """The twins of optimizers."""

    def __init__(self):
        self._twins = {}  # id(optimizer) -> (optimizer, its twin or None)
        self._counts = {}  # id(optimizer) -> its steps
        self._starts = {}  # param -> (its float32 values, its half values before the first step; now)
        self._rows = []  # (param, what ``_compared`` returns)
        self.problems = {}  # optimizer class -> why no copy of it could step in half

    def before_step(self, optimizer):
        """Step with the twin, using the gradients that the optimizer is about to use."""
        key = id(optimizer)
        try:
            if key not in self._twins:
                self._twins[key] = optimizer, OptimizerTwin(optimizer, torch.float16)
                for param, half in self._twins[key][1].pairs:
                    self._starts[param] = param.detach().clone(), half.detach().clone(), half
            twin = self._twins[key][1]
            if twin is None:
                return
            self._counts[key] = self._counts.get(key, 0) + 1
            if self._counts[key] > STEPS:
                self._finish(twin, optimizer)
            else:
                twin.step()
        except Exception as error:  # an optimizer may not support something: the report says so
            self.problems[type(optimizer).__name__] = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._twins[key] = optimizer, None

    def _finish(self, twin, optimizer):
        """Compare the weights, and free the twin."""
        self._twins[id(optimizer)] = optimizer, None
        with torch.no_grad():
            for param, _ in twin.pairs:
                if param in self._starts:
                    self._rows.append((param, _compared(param, *self._starts.pop(param))))

    def kept(self):
        """Return ``{id(param): (kept, whether all half weights are finite)}`` for the params that have changed."""
        for optimizer, twin in list(self._twins.values()):
            if twin is not None:
                self._finish(twin, optimizer)
        rows = zip(self._rows, read_together([row for _, row in self._rows]))
        return {id(param): (kept, total - total == 0) for (param, _), (kept, square, total) in rows if square > 0}


def _compared(param, start, half_start, half):
    """Return a tensor of (kept, square of the distance that the param moved, sum of the half weights)."""
    wide = torch.float32 if param.device.type == "mps" else torch.float64  # which has no float64
    moved, half_moved = (param - start).to(wide), half.to(wide) - half_start.to(wide)
    square = (moved * moved).sum()
    return torch.stack([(moved * half_moved).sum() / square, square, half.to(wide).sum()])
