"""Results of the comparison of a row with the baseline, in addition to the verdict: its speed and its equivalence."""

from dataclasses import dataclass
from typing import Optional, Tuple

from . import schema
from .schema import COUNT, described, optional


@dataclass
class Speed:
    """The speed as a multiple of the baseline's: above 1 is faster."""

    ratio: float = described(schema.NUMBER, "the baseline's median step time divided by this one's, over rounds", 1.0)
    interval: Optional[Tuple[float, float]] = described(
        optional(schema.pair(schema.NUMBER, schema.NUMBER)), "95 %; null if there was a single round", None
    )


@dataclass
class Equivalence:
    """Whether a row ends within the tolerance of the baseline."""

    result: str = described(schema.choice(("shown", "refuted", "not shown")), "within the tolerance", "not shown")
    difference: Optional[float] = described(
        optional(schema.NUMBER), "of the end of the loss, or of the target's metric, as a share", None
    )
    interval: Optional[Tuple[float, float]] = described(
        optional(schema.pair(schema.NUMBER, schema.NUMBER)), "of the difference, 95 %; null if unknown", None
    )
    seeds: int = described(COUNT, "the number of seeds used", 1)
    seeds_needed: Optional[int] = described(
        optional(COUNT), "the number that would show it; null if it is refuted or no number would", None
    )
