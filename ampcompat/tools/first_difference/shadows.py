"""The values of the compared step if the results of its paired operations were those of the reference.

Each value has three versions: in the step's dtypes (``own``); in float32 from inputs rounded as in the step
    (``rounded``); and in float32 throughout (``exact``).
"""

from typing import NamedTuple

import torch

from . import repeated_ops
from .repeated_ops import is_half, widened
from .rounding import unit
from .step_record import COMPUTE, COPY, OUTSIDE


class Shadow(NamedTuple):
    """``dtype``: the one with the largest rounding on the way. ``is_known``: whether all that it depends on is known.

    ``is_own``: whether it depends on a half value from before the step whose float32 value is not known.
    ``is_computed``: whether unpaired operations computed it.
    """

    own: torch.Tensor
    rounded: torch.Tensor
    exact: torch.Tensor
    dtype: torch.dtype
    is_known: bool = True
    is_own: bool = False
    is_computed: bool = False


class Shadows:
    """The shadows of a step's values; each is dropped after its last use.

    Args:
        record: the ``StepRecord``, and ``store`` its ``TensorStore``.
        params: ``{(model, name): float32 tensor}`` of the reference.
    """

    def __init__(self, record, store, params):
        self._record, self._store, self._params = record, store, params
        self._found, self._last = {}, {}
        for op in record.ops:
            self._last.update(dict.fromkeys(op.inputs, op.index))

    def of(self, index):
        """Return the ``Shadow`` of a value; None if unknown."""
        if index not in self._found:
            self._found[index] = self._from_before(self._record.values[index])
        return self._found[index]

    def forget(self, op):
        """Drop the shadows that no later operation uses."""
        for index in op.inputs:
            if self._last[index] == op.index:
                self._found.pop(index, None)
        for index in op.outputs:
            if index not in self._last:
                self._found.pop(index, None)

    def put(self, index, tensor):
        """Set a value to the reference's, rounded to its dtype in the step."""
        value = self._record.values[index]
        if tensor is None:
            self._found[index] = None
            return
        tensor = tensor.to(value.device)
        own = tensor.to(value.dtype)
        exact = tensor if own.is_floating_point() else own
        self._found[index] = Shadow(own, widened(own), exact, value.dtype)

    def _from_before(self, value):
        own = self._store.get(value.key)
        if own is None:
            return None
        own = own.to(value.device)
        known = self._params.get(value.param) if value.param is not None else None
        if known is not None and known.shape == own.shape:
            return Shadow(own, widened(own), known.to(value.device), value.dtype)
        is_outside = value.kind == OUTSIDE
        return Shadow(own, widened(own), widened(own), value.dtype, is_outside, is_half(value.dtype))

    def compute(self, op):
        """Compute the shadows of an unpaired operation's results from those of its inputs."""
        inputs = {index: self.of(index) for index in op.inputs}
        results = None
        if op.kind in (COMPUTE, COPY) and all(each is not None for each in inputs.values()):
            results = self._repeated(op, inputs)
        if results is None or len(results) != len(op.outputs):
            for index in op.outputs:
                self._found[index] = None
            return
        for index, shadow in zip(op.outputs, results):
            self._found[index] = shadow

    def _repeated(self, op, inputs):
        shadows = list(inputs.values())
        try:
            own = repeated_ops.repeat(op, {index: each.own for index, each in inputs.items()})
            dtypes = [self._record.values[index].dtype for index in op.outputs]
            if not any(map(is_half, dtypes)) and all(each.own is each.exact for each in shadows):
                rounded = exact = own
            else:
                exact = repeated_ops.repeat(op, {index: each.exact for index, each in inputs.items()}, is_wide=True)
                rounded = repeated_ops.repeat(op, {index: each.rounded for index, each in inputs.items()}, is_wide=True)
        except Exception:  # such as a kernel that does not support float32: then nothing is reported for it
            return None
        if op.kind == COPY:
            rounded = [widened(each) if is_half(each.dtype) else wide for each, wide in zip(own, rounded)]
        known = all(each.is_known for each in shadows)
        is_own, is_computed = any(each.is_own for each in shadows), any(each.is_computed for each in shadows)
        is_computed = is_computed or op.kind == COMPUTE
        floating = [dtype for dtype in dtypes if dtype.is_floating_point]
        coarse = coarsest([each.dtype for each in shadows] + floating)
        return [
            Shadow(*each, coarse, known and not (is_own and is_computed), is_own, is_computed)
            for each in zip(own, rounded, exact)
        ]


def coarsest(dtypes):
    """Return the floating-point dtype with the largest rounding error; float32 if there is none."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=unit, default=torch.float32)
