"""Bytes by kind: what a step was measured to hold.

Owns: ``Kinds``, ``Reading``, the names of the kinds and how bytes are written for people.
Must not touch: torch; these are plain records.
The surprise: None is "not measured", which is no zero, and sums leave it out.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Optional


@dataclass
class Kinds:
    """Bytes by kind; None is not measured.

    ``casts`` are casts of weights that O1 and O4 keep for an iteration, ``temporaries`` whatever else was made since
    the forward pass began and still lives.
    """

    parameters: Optional[int] = None
    gradients: Optional[int] = None
    masters: Optional[int] = None
    optimizer: Optional[int] = None
    activations: Optional[int] = None
    model_buffers: Optional[int] = None
    casts: Optional[int] = None
    temporaries: Optional[int] = None

    @property
    def buffers(self):
        """Model buffers, casts of weights and temporaries together, which is what reports call buffers."""
        return _sum([self.model_buffers, self.casts, self.temporaries])

    @property
    def total(self):
        """The sum of what was measured."""
        return _sum(asdict(self).values()) or 0

    def greatest(self, other):
        """Return the greater of two, kind by kind."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in NAMES)
        return Kinds(**{name: max([each for each in both if each is not None], default=None) for name, *both in pairs})

    def plus(self, kind, size):
        """Return these with ``size`` more of one kind."""
        return replace(self, **{kind: (getattr(self, kind) or 0) + size})


#: The kinds in the order of tables.
NAMES = tuple(each.name for each in fields(Kinds))


def _sum(values):
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass
class Reading:
    """What a step was measured to hold.

    Attributes:
        at_peak: the kinds at the one moment when their sum was greatest.
        most: each kind at its own greatest, which may be at different moments.
        cuda_allocated, cuda_reserved: the most that the allocator has given and held since the process began, all
            devices of the params together; None without CUDA.
        fragmentation: of what the allocator held, the share that lay between blocks in use, at the worst of the moments
            before and after the backward pass and before the step; None without CUDA.
    """

    at_peak: Kinds = field(default_factory=Kinds)
    most: Kinds = field(default_factory=Kinds)
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


def written(size):
    """Return bytes as people write them: "1.50 GB", in powers of 1000 as the formula's authors count."""
    if size is None:
        return "-"
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000.0
    return "{}{:.{}f} {}".format(sign, size, 0 if unit == "B" else 2, unit)
