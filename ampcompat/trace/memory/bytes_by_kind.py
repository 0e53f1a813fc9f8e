"""The measured memory of a step, in bytes per kind, and the formatting of bytes."""

from dataclasses import dataclass, field, fields, replace
from typing import Optional


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
