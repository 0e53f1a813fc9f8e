"""``MemoryReport``: the memory of a step by kind, measured or predicted, as a table; without torch."""

from dataclasses import dataclass
from typing import List, Optional

from ...support.terminal import aligned
from .bytes_by_kind import KINDS, MemoryUsage, format_bytes

_TITLES = {"optimizer": "optimizer state", "model_buffers": "model buffers", "casts": "half copies of weights"}

#: Differences below this share of the total are not mentioned.
_MIN_SHARE = 0.005

#: The value of ``MemoryReport.level`` without ``amp.initialize``.
WITHOUT_AMP = "float32 without amp"

_PLACES = {"cpu": "this CPU", "cuda": "a GPU"}


@dataclass
class MemoryReport:
    """The memory of one training step.

    Attributes:
        level: the opt level, or ``WITHOUT_AMP``.
        num_params: the number of elements of the params.
        usage: the ``MemoryUsage``: all figures, those of CUDA's allocator included.
        notes: sentences on what was not measured, or what was assumed.
        predicted_for: the device whose memory is predicted, "cpu" or "cuda"; None: it was measured.
        at_peak: the bytes per kind at the moment when their sum is largest; None means not measured.
        peak_by_kind: the peak of each kind; they peak at different moments, so they do not add up.
        peak_total: the sum of ``at_peak``, in bytes.
    """

    level: str
    num_params: int
    usage: MemoryUsage
    notes: List[str]
    predicted_for: Optional[str] = None

    def __post_init__(self):
        self.at_peak, self.peak_by_kind = self.usage.at_peak, self.usage.peak_by_kind
        self.peak_total = self.at_peak.total

    def table(self) -> str:
        """Return a table of the kinds, and the notes."""
        head = f"Memory of one step at {self.level}, {self.num_params:,} params"
        if self.predicted_for is not None:
            head = f"Predicted at {self.level} for {self.num_params:,} params, on {_PLACES[self.predicted_for]}"
        return "\n".join([head] + self._rows() + self.notes)

    __str__ = table

    def _rows(self):
        rows = [["", "at the peak", "at its own peak"]]
        for name in KINDS:
            sizes = [getattr(kinds, name) for kinds in (self.at_peak, self.peak_by_kind)]
            rows.append([_TITLES.get(name, name)] + list(map(format_bytes, sizes)))
        rows.append(["sum", format_bytes(self.peak_total), "-"])
        rows.append(["bytes per param", f"{self.peak_total / max(self.num_params, 1):.2f}", "-"])
        if self.peak_by_kind.offloaded:
            sizes = [kinds.offloaded for kinds in (self.at_peak, self.peak_by_kind)]
            rows.append(["offloaded"] + list(map(format_bytes, sizes)))
        return aligned(rows)


def notes_on(usage):
    """Return sentences on a ``MemoryUsage``: what its peak does not have, and what was not measured."""
    most, peak, found = usage.peak_by_kind, usage.at_peak, []
    if most.offloaded:
        sentence = "Offloaded, {}: on another device than the params, and not part of any sum."
        found.append(sentence.format(format_bytes(most.offloaded)))
    return found + _not_at_peak(peak, most) + _not_measured(most) + _on_cuda(usage)


def _not_at_peak(peak, most):
    least = _MIN_SHARE * peak.total
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
