"""Why calls of functions ran in their dtype, in words, and the table of counted calls."""

import textwrap

from ...engine.op_table import expansion
from ...opt_levels import OPT_LEVELS
from ...support import terminal

#: The effect of each rule of the op table, in a few words.
RULES = {
    expansion.HALF: "half",
    expansion.FLOAT: "float32",
    expansion.PROMOTE: "the widest dtype of the inputs",
    expansion.SEQUENCE: "the widest dtype of the inputs",
    expansion.BANNED: "refused in half",
    expansion.FLOAT_IN_PLACE: "computed in float32, the tensor keeps its dtype",
    expansion.FOLLOW_SELF: "the dtype of the tensor that it changes",
    expansion.PASSTHROUGH: "never cast",
    expansion.FLOAT32_INSIDE: "float32 inside on a CPU, the result as the input",
}
_FROM_APEX = "apex"

#: Calls with inputs of several dtypes; the columns of the table, in order.
MIXED = "mixed"
DTYPES = ("float16", "bfloat16", "float32", "float64", MIXED)

NOT_IN_TABLE = "not in the op table: the dtype of its inputs"
CASTS_ARE_OFF = "casts are off here: amp.disable_casts, or autocast that is disabled"
_WIDTHS = (80, 120)  # of the table, at least and at most


def reason(kind, session):
    """Return why the calls of a ``CallKind`` ran in their dtype."""
    place = kind.place
    casts_here = _casts_functions(place.level, session)
    if kind.row is not None and kind.are_casts_on:
        return _of_row(kind, session)
    if place.kept is not None:
        layer = f"layer {place.kept}" if place.kept else "the model"
        return f"keep_fp32 keeps {layer} in float32"
    if casts_here:
        return NOT_IN_TABLE if kind.row is None else CASTS_ARE_OFF
    return _at_level_of_weights(kind, session)


def _casts_functions(level, session):
    """Return whether functions of the op table cast in models at a level, or outside of all models (None)."""
    return session.choice is not None if level is None else OPT_LEVELS[level].patch_torch_functions


def _of_row(kind, session):
    row = kind.row
    low = session.cast_backend.dtypes.low
    if row.rule == expansion.HALF and low not in (kind.low,) + kind.dtypes:
        return "op table: half, but its tensors are on a device where nothing is cast"
    told = RULES[row.rule]
    if row.rule == expansion.BANNED:
        is_allowed = session.process_casts.allow_banned
        told += ", computed in float32 by allow_banned" if is_allowed else "; its inputs were float32"
    if row.reason.startswith(_FROM_APEX):
        return f"op table: {told}, as in Apex{row.reason[len(_FROM_APEX) :]}"
    return f"op table: {told}; {row.reason}"


def _at_level_of_weights(kind, session):
    """Return the reason at a level that casts weights and inputs of models, but no functions."""
    place = kind.place
    if place.level is None:
        level = "the level" if session.policy is None else session.policy.opt_level
        return f"outside of the models, where {level} casts nothing: the dtype of its inputs"
    policy = OPT_LEVELS[place.level]
    if not policy.casts_model:
        return f"{place.level} computes in float32"
    if place.is_wide_norm:
        return f"keep_batchnorm_fp32: a norm with float32 weights at {place.level}"
    if len(kind.dtypes) > 1:
        return f"inputs of several dtypes, and {place.level} casts no functions"
    dtypes = (kind.low,) + kind.dtypes
    if policy.cast_model_type in dtypes:
        return f"{place.level}: the model's weights and inputs are half"
    return f"its inputs are float32, and {place.level} casts no functions"


# -- the table ---------------------------------------------------------------------------------------------------------


def table(calls, steps, level, backend):
    """Return the table of ``CountedCalls`` as text.

    Args:
        calls: the list.
        steps: the number of optimizer steps in which they were counted.
        level, backend: of the session; None if there is none.
    """
    where = "" if level is None else f" at {level}"
    where += "" if backend is None else f", cast backend {backend}"
    head = f"ampcompat: calls of torch's functions in {steps} optimizer step{'' if steps == 1 else 's'}{where}"
    if not calls:
        return head + ": none was counted."
    dtypes = [name for name in DTYPES if any(line.dtype == name for line in calls)]
    rows = _rows(calls)
    width = max([len("function")] + [len(name) for name, _, _ in rows])
    columns = "".join(f"{name:>10}" for name in dtypes)
    lines = [head + ", by the dtype they ran in", "", f"{'function':<{width}}{columns}  why"]
    for name, counts, why in rows:
        cells = "".join(f"{counts.get(each) or '':>10}" for each in dtypes)
        lines += _wrapped(f"{name:<{width}}{cells}  ", why)
    return "\n".join(lines + [""] + _footer(calls))


def _rows(calls):
    """Return (function, {dtype: calls}, why); calls of a function for the same reason are one row."""
    rows = {}
    for line in calls:
        counts = rows.setdefault((line.function, line.reason), {})
        counts[line.dtype] = counts.get(line.dtype, 0) + line.calls
    return [(name, counts, why) for (name, why), counts in rows.items()]


def _wrapped(start, text):
    columns = terminal.columns(100, *_WIDTHS)
    space = max(columns - len(start), 30)
    parts = textwrap.wrap(text, space)
    return [start + parts[0]] + [" " * len(start) + part for part in parts[1:]]


def _footer(calls):
    total = sum(line.calls for line in calls)
    half = sum(line.calls for line in calls if line.dtype in ("float16", "bfloat16"))
    told = [f"{half} of {total} calls, {100 * half / total:.0f} %, ran in half."]
    low = sorted({line.dtype for line in calls if line.emulated})
    if low:
        told[0] += f" On this CPU {' and '.join(low)} products are computed in float32, inputs and results rounded."
    if any(line.dtype == MIXED for line in calls):
        told.append("Mixed: inputs of several dtypes, such as a half input and float32 weights.")
    told.append("Not counted: casts, views, backward passes, scale_loss blocks and steps of optimizers.")
    return told
