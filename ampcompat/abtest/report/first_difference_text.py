"""The results of ``ab --first-difference`` as sentences and a table, for the terminal and the page."""

import math

from .tables import Table


def paragraphs(report):
    """Return lists of sentences; an empty list if no step was compared."""
    compared = report.step_comparison
    if compared is None:
        return []
    told = [_first(report.first_difference, compared)]
    if compared.parted is not None:
        told.append([f"The two steps diverge at {_place(compared.parted)}: {compared.parted.told}."])
    told[-1].append(_counts(compared))
    return told


def _first(first, compared):
    rows = f"{compared.baseline} and {compared.row}"
    if first is None:
        number = compared.step + 1
        return [f"No operation of step {number} differs between {rows} by more than its dtype explains."]
    lines = [
        f"The first difference between {rows} that a dtype does not explain is at {_place(first)}: {_what(first)}."
    ]
    if first.line:
        lines.append("    {}{}".format(first.line, "    " + first.source if first.source else ""))
    shown = ", ".join(f"{_shape(shape)} {dtype}" for shape, dtype in zip(first.shapes, first.dtypes))
    lines.append(f"    {first.kernel}: {shown}")
    own, inherited = _number(first.introduced), _number(first.inherited)
    lines.append(
        f"    On the baseline's inputs its error is {own} eps of {first.unit}; its inputs add {inherited} eps."
    )
    return lines


def _what(first):
    return "it " + first.told if first.told.split()[0] in ("takes", "uses", "computes", "runs") else first.told


def _place(op):
    where = "outside the model" if op.module is None else "in {}".format(op.module or "the model itself")
    call = f", call {op.call + 1}" if op.call else ""
    return "{}{} {}{}".format("the gradient of " if op.direction == "backward" else "", op.op, where, call)


def _counts(compared):
    told = (
        f"{compared.checked} operations of step {compared.step + 1} were repeated on the inputs of {compared.baseline}"
    )
    if compared.unchecked:
        told += f"; {compared.unchecked} could not be"
    if compared.left_out:
        told += (
            f"; {compared.left_out} tensors were left out, since they are larger than the limit of the temporary folder"
        )
    return told + "."


def table(report):
    """Return a list of one table, with the operations that introduce the most error, or an empty list."""
    compared = report.step_comparison
    if compared is None or not compared.largest:
        return []
    rows = [
        [
            "-" if op.module is None else op.module or "(model)",
            op.op,
            op.direction,
            _shape(op.shapes[-1]) if op.shapes else "-",
            op.unit,
            _number(op.introduced),
            _number(op.inherited),
        ]
        for op in compared.largest
    ]
    title = "The largest errors, in eps of the dtype: introduced by the operation, and inherited from its inputs"
    return [Table(title, "module op pass result dtype introduced inherited".split(), rows, 5, [])]


def _shape(shape):
    return "x".join(map(str, shape)) or "()"


def _number(value):
    if not math.isfinite(value):
        return repr(value)
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"
