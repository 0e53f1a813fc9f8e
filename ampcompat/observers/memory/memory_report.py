"""The measured or predicted memory of a step in bytes per kind, and ``MemoryReport``, a table of it; without torch."""

from dataclasses import dataclass, field, fields, replace
from typing import List, Optional

from ...support.terminal import aligned


@dataclass
class BytesByKind:
    """Bytes per kind of memory; None means "not measured" and is left out of sums.

    ``casts`` are the half copies of weights that O1 and O4 cache for an iteration, ``temporaries`` all other tensors
    that were created since the forward pass began and still exist. ``offloaded`` is not part of any sum: tensors on a
    different device than the params, such as those that ``save_on_cpu`` keeps on the CPU for a model on a GPU.
    """

    parameters: Optional[int] = None
    gradients: Optional[int] = None
    masters: Optional[int] = None
    optimizer: Optional[int] = None
    activations: Optional[int] = None
    model_buffers: Optional[int] = None
    casts: Optional[int] = None
    temporaries: Optional[int] = None
    offloaded: Optional[int] = None

    @property
    def buffers(self):
        """Model buffers, half copies of weights and temporaries together, called buffers in reports."""
        return _sum([self.model_buffers, self.casts, self.temporaries])

    @property
    def total(self):
        """The sum of all measured kinds."""
        return _sum(getattr(self, name) for name in KINDS) or 0

    def maximum(self, other):
        """Return the larger of two values for each kind."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _NAMES)
        maxima = {name: max([each for each in both if each is not None], default=None) for name, *both in pairs}
        return BytesByKind(**maxima)

    def plus(self, kind, size):
        """Return a copy with ``size`` more bytes of one kind."""
        return replace(self, **{kind: (getattr(self, kind) or 0) + size})


_NAMES = tuple(each.name for each in fields(BytesByKind))

#: The kinds that add up, in the order of tables.
KINDS = tuple(name for name in _NAMES if name != "offloaded")


def _sum(values):
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass
class MemoryUsage:
    """The measured memory of a step.

    Attributes:
        at_peak: the bytes per kind at the moment when their sum was largest.
        peak_by_kind: the peak of each kind; the peaks may be at different moments, so they do not add up.
        cuda_allocated, cuda_reserved: the peaks of the CUDA caching allocator since the process began, in bytes, summed
            over the devices of the params; None without CUDA.
        fragmentation: the share of the reserved bytes that lies in inactive split blocks, the largest of the samples
            before and after the backward pass and before the optimizer step; None without CUDA.
    """

    at_peak: BytesByKind = field(default_factory=BytesByKind)
    peak_by_kind: BytesByKind = field(default_factory=BytesByKind)
    cuda_allocated: Optional[int] = None
    cuda_reserved: Optional[int] = None
    fragmentation: Optional[float] = None

    def record(self):
        """Return the fields of ``abtest.Memory`` as a dict."""
        names = ("parameters", "gradients", "masters", "optimizer", "activations", "buffers")
        found = {name: getattr(self.at_peak, name) for name in names}
        found.update(peak_total=self.at_peak.total, cuda_allocated=self.cuda_allocated)
        found.update(cuda_reserved=self.cuda_reserved, fragmentation=self.fragmentation)
        return found


def format_bytes(size):
    """Return bytes as text, in powers of 1000 as in the ZeRO paper: "1.50 GB"; "-" for None."""
    if size is None:
        return "-"
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000.0
    return "{}{:.{}f} {}".format(sign, size, 0 if unit == "B" else 2, unit)


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
