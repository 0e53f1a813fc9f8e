"""The comparison of one step with the baseline's, operation by operation: plain data, as in ``ab --json``."""

from dataclasses import dataclass
from typing import List, Optional

from . import schema
from .schema import COUNT, NUMBER, TEXT, described, list_of, optional

_UNITS = "as the root mean square of the error, over eps of `unit` times that of the baseline's result"


@dataclass
class OpDifference:
    """An operation of a step whose result is not the baseline's."""

    module: Optional[str] = described(optional(TEXT), "the module's name; null outside every model", None)
    op: str = described(TEXT, "the function called, such as `softmax`", "")
    direction: str = described(schema.choice(("forward", "backward")), "the pass in which it runs", "forward")
    introduced: float = described(NUMBER, "its error on the baseline's inputs, " + _UNITS, 0.0)
    inherited: float = described(NUMBER, "the error that its own inputs add to that", 0.0)
    unit: str = described(TEXT, "the dtype of its rounding", "float32")
    told: str = described(TEXT, "what is wrong with it; empty if the error is its dtype's rounding", "")
    kernel: str = described(TEXT, "its name in `torch.ops`", "")
    call: int = described(COUNT, "which call of the module in the step, from 0", 0)
    line: str = described(TEXT, "`FILE:LINE` of the script; for a gradient, that of the forward pass", "")
    source: str = described(TEXT, "this line", "")
    shapes: List[List[int]] = described(list_of(list_of(COUNT)), "of its tensors, the result last", factory=list)
    dtypes: List[str] = described(list_of(TEXT), "of the same tensors", factory=list)


_DIFFERENCE = schema.record(OpDifference)


@dataclass
class StepComparison:
    """What was compared by `ab --first-difference`."""

    baseline: str = described(TEXT, "the row to compare with", "O0")
    row: str = described(TEXT, "the level or variant", "")
    step: int = described(COUNT, "the number of the optimizer step, from 0", 1)
    checked: int = described(COUNT, "operations that were repeated on the baseline's inputs", 0)
    unchecked: int = described(COUNT, "operations that could not be repeated: other shapes, or tensors left out", 0)
    left_out: int = described(COUNT, "tensors beyond the limit of the temporary folder", 0)
    parted: Optional[OpDifference] = described(
        optional(_DIFFERENCE),
        "the first operation that only one of the two has, or that has different shapes or data",
        None,
    )
    largest: List[OpDifference] = described(
        list_of(_DIFFERENCE),
        "the ten operations with the largest introduced errors, relative to their results",
        factory=list,
    )


DIFFERENCE, COMPARISON = _DIFFERENCE, schema.record(StepComparison)


def from_event(found, baseline, row, step):
    """Return ``(OpDifference or None, StepComparison)`` for the results of a recorded run.

    Args:
        found: the event of ``tools.first_difference``.
    """
    first = None if found["first"] is None else DIFFERENCE.read(found["first"], "first")
    tree = {name: value for name, value in found.items() if name != "first"}
    return first, COMPARISON.read(dict(tree, baseline=baseline, row=row, step=step), "")
