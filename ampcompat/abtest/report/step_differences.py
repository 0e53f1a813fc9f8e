"""What ``ab --first-difference`` has found, in sentences and in a table, for the terminal and the page."""

import math

from .tables import Table


def paragraphs(report):
    """Return lists of sentences; an empty list where no step was compared."""
    compared = report.step_comparison
    if compared is None:
        return []
    told = [_first(report.first_difference, compared)]
    if compared.parted is not None:
        told.append(["The two steps part at {}: {}.".format(_place(compared.parted), compared.parted.told)])
    told[-1].append(_counts(compared))
    return told


def _first(first, compared):
    rows = "{} and {}".format(compared.baseline, compared.row)
    if first is None:
        return ["No operation of step {} differs between {} by more than its dtype explains.".format(
            compared.step + 1, rows)]  # fmt: skip
    lines = [
        "The first difference between {} that a dtype does not explain is at {}: {}.".format(
            rows, _place(first), _what(first)
        )
    ]
    if first.line:
        lines.append("    {}{}".format(first.line, "    " + first.source if first.source else ""))
    shown = ", ".join("{} {}".format(_shape(shape), dtype) for shape, dtype in zip(first.shapes, first.dtypes))
    lines.append("    {}: {}".format(first.kernel, shown))
    lines.append(
        "    On the baseline's inputs its error is {} eps of {}; its inputs add {} eps.".format(
            _number(first.introduced), first.unit, _number(first.inherited)
        )
    )
    return lines


def _what(first):
    return "it " + first.told if first.told.split()[0] in ("takes", "computes", "runs") else first.told


def _place(op):
    where = "outside the model" if op.module is None else "in {}".format(op.module or "the model itself")
    call = ", call {}".format(op.call + 1) if op.call else ""
    return "{}{} {}{}".format("the gradient of " if op.direction == "backward" else "", op.op, where, call)


def _counts(compared):
    told = "{} operations of step {} were repeated on the inputs of {}".format(
        compared.checked, compared.step + 1, compared.baseline
    )
    if compared.unchecked:
        told += "; {} could not be".format(compared.unchecked)
    if compared.left_out:
        told += "; {} tensors were left out for lack of room".format(compared.left_out)
    return told + "."


def table(report):
    """Return a list of one table, of the operations that introduce most; an empty list without any."""
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
    return "{:.2g}".format(value) if value < 100 else "{:.0f}".format(value)
