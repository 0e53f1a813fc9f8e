"""The error of an operation on the inputs of the reference, and whether its dtype explains it."""

import math
from typing import NamedTuple, Optional

import torch

from ...engine.op_table import expansion
from ...engine.op_table.function_facts import having
from ...support.torch_compat.torch_names import dtype_name
from . import descriptions, repeated_ops
from .repeated_ops import is_half, widened
from .rounding import in_units, is_finite

#: The error that rounding explains, in units of the dtype: for the same operation in float32 in both processes; and for
#: an operation in half, compared with float32 on the same half inputs.
SAME, KERNEL = 64.0, 2.0

#: ``SAME`` if TF32 may be used, whose mantissa has 10 bits.
SAME_ON_CUDA = 3.0 * 2.0**13

_ADDS = having("adds")


class Result(NamedTuple):
    """A result of an operation on the inputs of the reference, and on those rounded as in the compared step.

    ``index``: of its value. ``own``: in the step's dtypes; ``ideal``: from the same rounded inputs in float32;
    ``exact``: from inputs that are not rounded; ``expected``: of the reference; ``scale``: see ``in_units``.
    """

    index: int
    own: torch.Tensor
    ideal: torch.Tensor
    exact: torch.Tensor
    expected: torch.Tensor
    scale: Optional[torch.Tensor]


def results(op, given, inputs, expected, has_half):
    """Return the ``Result`` of each floating-point output of an operation.

    Args:
        op: the ``StepOp`` of the compared step.
        given: ``{index of a value: tensor}``: its inputs in the reference.
        inputs: the same in the dtypes of the compared step.
        expected: its outputs in the reference.
        has_half: whether some of its tensors are half in the compared step.

    Raises:
        Exception: from the operation, which may not support float32.
    """
    wide = {index: widened(tensor) for index, tensor in given.items()}
    exact = repeated_ops.repeat(op, wide, is_wide=True)
    own = ideal = repeated_ops.repeat(op, inputs)
    if has_half:
        halves = {index: widened(tensor) for index, tensor in inputs.items()}
        ideal = repeated_ops.repeat(op, halves, is_wide=True)
    scales = [None] * len(own)
    if op.base in _ADDS:
        sizes = {index: each.abs() if each.is_floating_point() else each for index, each in wide.items()}
        scales = repeated_ops.repeat(op, sizes, is_wide=True)
    rows = [Result(*row) for row in zip(op.outputs, own, ideal, exact, expected, scales)]
    rows = [row for row in rows if row.expected.is_floating_point() and row.expected.numel()]
    rows = [row for row in rows if row.own.shape == row.expected.shape]
    return [row._replace(expected=row.expected.to(row.own.device)) for row in rows]


class OpErrors:
    """The errors of one operation's results.

    Args:
        found: a list of ``Result``, not an empty one.
        dtype: the one whose eps is the unit.
        low: the dtype; numbers beyond its range count as equal.
    """

    def __init__(self, found, dtype, low):
        self._found, self._dtype, self._low = found, dtype, low

    def introduced(self):
        """Return the largest error of the results in the step's dtypes, in eps."""
        return self._largest("own", "expected", self._dtype)

    def inherited(self, recorded):
        """Return the difference of the step's own results from those on the reference's inputs, in eps.

        Args:
            recorded: a function: index of a value -> the tensor in the step, or None.
        """
        return max(self._inherited(result, recorded(result.index)) for result in self._found)

    def _inherited(self, result, tensor):
        if tensor is None:
            return 0.0
        tensor = tensor.to(result.own.device).double()
        alone = self._units(tensor - result.own.double() + result.expected.double(), result, self._dtype)
        return alone if math.isfinite(alone) else self._units(tensor, result, self._dtype)

    def fault(self, rule, has_half, dtypes):
        """Return the problem with the operation, or None.

        Args:
            rule: of the op table for its function, if functions cast; None in a backward pass.
            has_half: whether some of its tensors are half.
            dtypes: those of its tensors.
        """
        is_on_cpu = all(result.own.device.type == "cpu" for result in self._found)
        if self._largest("exact", "expected", torch.float32) > (SAME if is_on_cpu else SAME_ON_CUDA):
            return descriptions.OTHER_KERNEL
        if not is_finite([each.own for each in self._found]) and is_finite([each.expected for each in self._found]):
            return descriptions.OVERFLOW
        if has_half and self._largest("own", "ideal", self._dtype) > KERNEL:
            return f"its kernel for {dtype_name(self._dtype)} is less precise than the dtype"
        is_meant_wide = rule == expansion.FLOAT and any(map(is_half, dtypes))
        if is_meant_wide and self._largest("own", "expected", torch.float32) > SAME:
            name = dtype_name(self._dtype)
            return f"{descriptions.RUNS_IN} {name} although the op table says float32"
        return None

    def _largest(self, name, other, dtype):
        pairs = [(getattr(each, name), each._replace(expected=getattr(each, other))) for each in self._found]
        return max(self._units(value, result, dtype) for value, result in pairs)

    def _units(self, value, result, dtype):
        return in_units(value, result.expected, dtype, self._low, result.scale)
