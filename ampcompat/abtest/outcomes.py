"""What the comparison of a row with the baseline gives, beside the verdict: its speed, and its equivalence."""

from dataclasses import dataclass
from typing import Optional, Tuple

from . import schema
from .schema import COUNT, described, optional


@dataclass
class Speed:
    """How many times the baseline's speed: above 1 is faster."""

    ratio: float = described(schema.NUMBER, "the baseline's median step time by this one's, over rounds in turn", 1.0)
    interval: Optional[Tuple[float, float]] = described(
        optional(schema.pair(schema.NUMBER, schema.NUMBER)), "95 %; null of a single round", None
    )


@dataclass
class Equivalence:
    """Whether a row ends within the tolerance of the baseline."""

    result: str = described(schema.choice(("shown", "refuted", "not shown")), "within the tolerance", "not shown")
    difference: Optional[float] = described(
        optional(schema.NUMBER), "of the end of the loss, or of the target's metric, as a share", None
    )
    interval: Optional[Tuple[float, float]] = described(
        optional(schema.pair(schema.NUMBER, schema.NUMBER)), "of the difference, 95 %; null where it is unknown", None
    )
    seeds: int = described(COUNT, "with which it was found", 1)
    seeds_needed: Optional[int] = described(
        optional(COUNT), "that would show it; null where it is refuted, or no number would", None
    )
