"""Format measured and predicted memory as a table, and explain the differences in sentences."""

from ...support.terminal import aligned
from .bytes_by_kind import KINDS, BytesByKind, format_bytes

_TITLES = {"optimizer": "optimizer state", "model_buffers": "model buffers", "casts": "half copies of weights"}

#: Differences below this share of the total are not mentioned.
_MIN_SHARE = 0.005


def table(columns, num_params):
    """Return bytes per kind side by side, with their sums and bytes per param, as text.

    Args:
        columns: (title, ``BytesByKind`` or None, whether the values are of one moment, so that they add up).
        num_params: the number of elements of the params.
    """
    columns = [column for column in columns if column[1] is not None]
    rows = [[""] + [title for title, _, _ in columns]]
    for name in KINDS:
        rows.append([_TITLES.get(name, name)] + [format_bytes(getattr(kinds, name)) for _, kinds, _ in columns])
    sums = [kinds.total if adds_up else None for _, kinds, adds_up in columns]
    rows.append(["sum"] + [format_bytes(total) for total in sums])
    shares = [None if total is None else total / max(num_params, 1) for total in sums]
    rows.append(["bytes per param"] + ["-" if share is None else f"{share:.2f}" for share in shares])
    if any(kinds.offloaded for _, kinds, _ in columns):
        rows.append(["offloaded"] + [format_bytes(kinds.offloaded) for _, kinds, _ in columns])
    return "\n".join(aligned(rows))


def differences(usage, estimate):
    """Return sentences on memory that was measured but not predicted, or predicted but not measured."""
    most, peak = usage.peak_by_kind, usage.at_peak
    predicted = BytesByKind() if estimate is None else estimate.by_kind
    found = [] if estimate is None else list(estimate.explanations)
    least = _MIN_SHARE * peak.total
    for kind in ("parameters", "gradients", "masters", "optimizer", "casts"):
        measured, expected = getattr(most, kind), getattr(predicted, kind)
        if measured is not None and expected is not None and abs(measured - expected) > least:
            found.append(_difference(kind, measured - expected))
    if (most.casts or 0) > least and not predicted.casts:
        found.append("Half copies of weights, {}: {}".format(format_bytes(most.casts), _WHY_MORE["casts"]))
    for kind, why in _UNPREDICTED:
        if (getattr(most, kind) or 0) > least:
            found.append(f"{kind.capitalize()}, {format_bytes(getattr(most, kind))}: {why}")
    if most.offloaded:
        sentence = "Offloaded, {}: on another device than the params, and not part of any sum."
        found.append(sentence.format(format_bytes(most.offloaded)))
    return found + _not_at_peak(peak, most, least) + _not_measured(most) + _on_cuda(usage)


_UNPREDICTED = (
    (
        "activations",
        "what autograd saves for the backward pass depends on the model and the batch; no formula covers it.",
    ),
    (
        "temporaries",
        "results that autograd does not save or that a checkpoint recomputes, gradients of activations, gradients "
        "before they are accumulated, copies inside the optimizer's step: allocated and freed; no formula covers them.",
    ),
)

_WHY_MORE = {
    "gradients": "half gradients and those of masters exist at the same time while they are copied or accumulated.",
    "optimizer": "its state differs from that after one step on a small tensor; some state grows for several steps.",
    "casts": "a weight is cast in two steps, or is widened during a product on a CPU that emulates half.",
}
_WHY_LESS = {
    "gradients": "not every trained param got a gradient in this step.",
    "optimizer": "a param that never had a gradient has no state.",
    "casts": "not every weight was used by a function that casts, or not all at the same time.",
}


def _difference(kind, difference):
    reasons = _WHY_MORE if difference > 0 else _WHY_LESS
    why = reasons.get(kind, "params were added, removed or replaced since initialize.")
    return "{} {} than predicted for {}: {}".format(
        format_bytes(abs(difference)), "more" if difference > 0 else "less", _TITLES.get(kind, kind), why
    )


def _not_at_peak(peak, most, least):
    missing = [
        f"{format_bytes(getattr(most, name) - (getattr(peak, name) or 0))} of {_TITLES.get(name, name)}"
        for name in KINDS
        if (getattr(most, name) or 0) - (getattr(peak, name) or 0) > least
    ]
    return ["At a different moment than the peak, so not part of it: {}.".format(", ".join(missing))] if missing else []


def _not_measured(most):
    missing = [name for name in ("activations", "temporaries") if getattr(most, name) is None]
    if not missing:
        return []
    sentence = "Not measured, since this torch version has no hooks for them: {}; the sum leaves them out."
    return [sentence.format(", ".join(missing))]


def _on_cuda(usage):
    if usage.cuda_allocated is None:
        return []
    found = [
        f"CUDA's allocator has allocated at most {format_bytes(usage.cuda_allocated)} and reserved "
        f"{format_bytes(usage.cuda_reserved)} since the process began. Not counted above are the batch, tensors that "
        "were created before the step, and the workspaces of kernels."
    ]
    if usage.fragmentation is not None:
        sentence = "Fragmentation: {:.1%} of the reserved bytes were in inactive split blocks."
        found.append(sentence.format(usage.fragmentation))
    return found
