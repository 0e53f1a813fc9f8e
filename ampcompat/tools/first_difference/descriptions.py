"""Descriptions of operations and their problems, in words and for JSON."""

from ...support.torch_compat.torch_names import dtype_name

#: The messages about an operation.
OTHER_KERNEL = "computes something different from the baseline, even in float32: its kernel or its arguments differ"
OVERFLOW, RUNS_IN = "its result is beyond the range of its dtype", "runs in"
OLD_VALUE = "uses a value from before the step that is not the baseline's, such as a half copy of older weights"
OTHER_DATA = "{} gets different data than in the baseline"

#: The number of operation names that are listed.
LISTED_NAMES = 5


def described(record, op):
    """Return an operation for the JSON report, without its error.

    Args:
        record: the ``StepRecord`` that it belongs to.
    """
    values = [record.values[index] for index in op.inputs + op.outputs[::-1]]
    return {
        "module": op.place.name,
        "op": op.public_name,
        "direction": op.direction,
        "kernel": op.name,
        "call": op.module_call,
        "line": "{}:{}".format(*op.line),
        "shapes": [list(value.shape) for value in values],
        "dtypes": [dtype_name(value.dtype) for value in values],
    }


def told_of_chain(ours, others):
    """Return how unpaired operations differ: those of the step, and those of the baseline."""
    if ours and others:
        names = list(dict.fromkeys(op.public_name for op in ours))
        more = ", \u2026" if len(names) > LISTED_NAMES else ""
        return "another computation replaces it: {}{}".format(", ".join(names[:LISTED_NAMES]), more)
    if others:
        return "it is missing"
    return "the baseline does not have it" if ours else "its input is another value than in the baseline"


def shapes_of(record, indices):
    """Return the shapes of values as text."""
    shapes = [record.values[index].shape for index in indices]
    return ", ".join("x".join(map(str, shape)) or "()" for shape in shapes)
