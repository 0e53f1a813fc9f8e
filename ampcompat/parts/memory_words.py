"""Where the memory goes, in a table and in sentences.

Owns: how kinds of bytes are laid out beside each other, and why a measured number is not the predicted one.
Must not touch: torch; numbers come in, text goes out.
The surprise: the kinds at the peak add up to it, and each kind's own greatest do not: they belong to different moments.
"""

from .memory_kinds import NAMES, Kinds, written

_TITLES = {"optimizer": "optimizer state", "model_buffers": "model buffers", "casts": "casts of weights"}

#: Differences below this share of the total are not worth a sentence.
_WORTH_SAYING = 0.005


def table(columns, elements):
    """Return kinds of bytes beside each other, with their sums and bytes per param, as text.

    Args:
        columns: (title, ``Kinds`` or None, whether they are of one moment and so add up).
        elements: of the params.
    """
    columns = [column for column in columns if column[1] is not None]
    rows = [[""] + [title for title, _, _ in columns]]
    for name in NAMES:
        rows.append([_TITLES.get(name, name)] + [written(getattr(kinds, name)) for _, kinds, _ in columns])
    sums = [kinds.total if adds_up else None for _, kinds, adds_up in columns]
    rows.append(["sum"] + [written(total) for total in sums])
    shares = [None if total is None else total / max(elements, 1) for total in sums]
    rows.append(["bytes per param"] + ["-" if share is None else "{:.2f}".format(share) for share in shares])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
        for row in rows
    )


def additions(footprint):
    """Return sentences on what a ``Footprint`` holds beyond the formula."""
    return ["{} more for {}: {}.".format(written(size), kind, why) for kind, size, why in footprint.additions]


def differences(reading, footprint):
    """Return sentences on what was measured and not predicted, or predicted and not there.

    Args:
        reading: a ``Reading``.
        footprint: the ``Footprint``, or None.
    """
    most, peak = reading.most, reading.at_peak
    predicted = footprint.full if footprint is not None else Kinds()
    found = [] if footprint is None else additions(footprint)
    least = _WORTH_SAYING * peak.total
    for kind in ("parameters", "gradients", "masters", "optimizer", "casts"):
        measured, expected = getattr(most, kind), getattr(predicted, kind)
        if measured is not None and expected is not None and abs(measured - expected) > least:
            found.append(_difference(kind, measured - expected))
    if (most.casts or 0) > least and not predicted.casts:
        found.append("Casts of weights, {}: {}".format(written(most.casts), _WHY_MORE["casts"]))
    for kind, why in _UNPREDICTED:
        if (getattr(most, kind) or 0) > least:
            found.append("{}, {}: {}".format(kind.capitalize(), written(getattr(most, kind)), why))
    return found + _missing_at_peak(peak, most, least) + _not_measured(most) + _on_cuda(reading)


_UNPREDICTED = (
    (
        "activations",
        "what autograd saves for the backward pass depends on the model and the batch, and is in no formula.",
    ),
    (
        "temporaries",
        "results that nobody saves or that a checkpoint computes again, gradients of activations or on their way to a "
        "param, copies inside the optimizer's step: made and freed, in no formula.",
    ),
)

_WHY_MORE = {
    "gradients": "half ones and those of masters are there together while they move, or longer if they accumulate.",
    "optimizer": "its state is not what a step on a small tensor showed; some grows for several steps.",
    "casts": "a weight is cast in two steps, or is widened for the time of a product on a CPU without half units.",
}
_WHY_LESS = {
    "gradients": "not every param that is trained got a gradient in this step.",
    "optimizer": "a param that has had no gradient yet has no state.",
    "casts": "not every weight was used by a function that casts, or not all at the same time.",
}


def _difference(kind, difference):
    reasons = _WHY_MORE if difference > 0 else _WHY_LESS
    why = reasons.get(kind, "params were added, removed or replaced since.")
    return "{} {} than predicted for {}: {}".format(
        written(abs(difference)), "more" if difference > 0 else "less", _TITLES.get(kind, kind), why
    )


def _missing_at_peak(peak, most, least):
    missing = [
        "{} of {}".format(written(getattr(most, name) - (getattr(peak, name) or 0)), _TITLES.get(name, name))
        for name in NAMES
        if (getattr(most, name) or 0) - (getattr(peak, name) or 0) > least
    ]
    return ["At another moment than the peak, and so no part of it: {}.".format(", ".join(missing))] if missing else []


def _not_measured(most):
    missing = [name for name in ("activations", "temporaries") if getattr(most, name) is None]
    if not missing:
        return []
    return ["Not measured, as this torch shows nothing of them: {}; the sum is without.".format(", ".join(missing))]


def _on_cuda(reading):
    if reading.cuda_allocated is None:
        return []
    found = [
        "CUDA's allocator has given at most {} and held {} since the process began. What was not counted above is the "
        "batch, tensors from elsewhere, and what kernels take for themselves.".format(
            written(reading.cuda_allocated), written(reading.cuda_reserved)
        )
    ]
    if reading.fragmentation is not None:
        found.append("Fragmentation: {:.1%} of what it held lay between blocks in use.".format(reading.fragmentation))
    return found
