"""The distribution of gradients over powers of two, and which of them plain float16 cannot represent.

float16 represents absolute values from 2**-24 (subnormal; at full precision from 2**-14) to 65504. Loss scaling shifts
gradients to the right in this histogram (Micikevicius et al. 2018, section 3.2, shows one).
"""

from __future__ import annotations

import math
from typing import Dict, NamedTuple, Optional

#: float16: the exponents of its smallest subnormal and smallest normal number, and the first one that is too large.
SUBNORMAL, NORMAL, TOO_LARGE = -24, -14, 16

#: The most rows of a table; the characters of its longest bar; the share of values that gets no separate rows.
MAX_ROWS, BAR_LENGTH, TAIL = 30, 40, 0.001

#: The share of subnormal values above which the summary mentions them.
MANY = 0.1


class Histogram(NamedTuple):
    """Counts of values by their exponents.

    ``counts`` maps an exponent ``e`` to the number of values in ``2**e <= |x| < 2**(e + 1)``; ``overflows`` is the
    number of finite values above 65504.
    """

    counts: Dict[int, int]
    zeros: int = 0
    nonfinite: int = 0
    overflows: int = 0

    @property
    def nonzero(self) -> int:
        """The number of values that are finite and not 0."""
        return sum(self.counts.values())

    def underflow_fraction(self, scale: float = 1.0) -> float:
        """Return the fraction of nonzero values below 2**-24, which float16 rounds to 0, after scaling by 2**n."""
        return self._fraction(-math.inf, SUBNORMAL - math.floor(math.log2(scale)))

    def subnormal_fraction(self) -> float:
        """Return the fraction of nonzero values from 2**-24 up to 2**-14, which float16 represents with fewer bits."""
        return self._fraction(SUBNORMAL, NORMAL)

    def overflow_fraction(self) -> float:
        """Return the fraction of nonzero values above 65504, without scaling."""
        return self.overflows / self.nonzero if self.nonzero else 0.0

    def _fraction(self, start, end):
        inside = sum(count for exponent, count in self.counts.items() if start <= exponent < end)
        return inside / self.nonzero if self.nonzero else 0.0

    def min_lossless_scale(self) -> Optional[float]:
        """Return the smallest power of two that scales every value to at least 2**-24; None without values."""
        return 2.0 ** max(SUBNORMAL - min(self.counts), 0) if self.counts else None

    def max_safe_scale(self) -> Optional[float]:
        """Return the largest power of two that scales no value above 65504; None without values."""
        return 2.0 ** (TOO_LARGE - 2 - max(self.counts)) if self.counts else None

    def summary(self) -> str:
        """Return in a sentence or two whether loss scaling is needed."""
        nonfinite = f"{self.nonfinite:,} values were inf or nan. " if self.nonfinite else ""
        if not self.counts:
            return f"{nonfinite}No gradient was finite and other than 0."
        return nonfinite + self._advice()

    def _advice(self):
        if self.overflows:
            sentence = "{} of the values are over 65504: float16 overflows at any scale; bfloat16 (O4, O5) does not."
            return sentence.format(_percent(self.overflow_fraction()))
        underflow, subnormal = self.underflow_fraction(), self.subnormal_fraction()
        least, most = self.min_lossless_scale(), self.max_safe_scale()
        if not underflow and subnormal < MANY:
            return "Plain float16 can represent every value: these gradients need no loss scaling."
        if not underflow:
            sentence = "In plain float16 no value underflows, but {} are subnormal; loss scales up to {} are safe."
            return sentence.format(_percent(subnormal), _power(most))
        start = f"In plain float16 {_percent(underflow)} of the nonzero values underflow to 0"
        if least <= most:
            return f"{start}; with a loss scale from {_power(least)} to {_power(most)} none do."
        return (
            f"{start}; with a loss scale of {_power(most)}, the largest safe one, "
            f"{_percent(self.underflow_fraction(most))} do."
        )

    def table(self, title: str = "Gradients by magnitude") -> str:
        """Return the histogram and its summary as text."""
        total = self.nonzero + self.zeros + self.nonfinite
        lines = [f"{title}: {total:,} values, {_percent(self.zeros / max(total, 1))} of them 0"]
        rows = self._rows()
        most = max([count for _, _, count in rows] or [1])
        zone = None
        for start, end, count in rows:
            if zone != _zone(start):
                zone = _zone(start)
                first, last, text = _ZONES[zone]
                lines.append(f"  {text}: {_percent(self._fraction(first, last))}")
            bar = "#" * max(round(count / most * BAR_LENGTH), 1 if count else 0)
            span = f"2^{start:<4} to" if start > -math.inf else " " * 4 + "under"
            lines.append(f"    {span:<9} 2^{end:<4} {_percent(count / self.nonzero):>7}  {bar}".rstrip())
        return "\n".join(lines + [self.summary()])

    def _rows(self):
        """Return (first exponent, end, count) without gaps; no row contains a limit of float16."""
        if not self.counts:
            return []
        first, last = self._first_exponent(), max(self.counts) + 1
        width = 1
        while (last - first) / width > MAX_ROWS:
            width *= 2
        below = sum(count for exponent, count in self.counts.items() if exponent < first)
        rows, start = [(-math.inf, first, below)] if below else [], first
        while start < last:
            end = min((start // width + 1) * width, _ZONES[_zone(start)][1], last)
            rows.append((start, end, sum(self.counts.get(exponent, 0) for exponent in range(start, end))))
            start = end
        return rows

    def _first_exponent(self):
        """Return the smallest exponent, ignoring a tail of very few values that underflow."""
        below = 0
        for exponent in sorted(self.counts):
            below += self.counts[exponent]
            if below > TAIL * self.nonzero or exponent >= SUBNORMAL:
                return exponent
        return min(self.counts)


_ZONES = (
    (-math.inf, SUBNORMAL, "under 2^-24, 0 in plain float16"),
    (SUBNORMAL, NORMAL, "subnormal in float16, with fewer bits"),
    (NORMAL, TOO_LARGE, "normal in float16"),
    (TOO_LARGE, math.inf, "overflow in float16"),
)


def _zone(exponent):
    return next(index for index, (start, end, _) in enumerate(_ZONES) if start <= exponent < end)


def _percent(fraction):
    if fraction and fraction < 0.001:
        return "<0.1 %"
    return f"{100 * fraction:.1f} %"


def _power(scale):
    power = f"2^{round(math.log2(scale))}"
    return f"{power} ({scale:.0f})" if 1 <= scale <= 2**24 else power
