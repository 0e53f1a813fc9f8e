"""How gradients are spread over the powers of two, and what plain float16 would make of them.

Owns: ``Histogram`` (counts, what they mean, a table), ``Counts`` (they grow on the device, unread).
Must not touch: gradients.
The surprise: only exact powers of two matter, so exponents are computed in float64 and corrected by a comparison; a
rounded logarithm would put the largest value under 2**-24 into the wrong bin.

float16 holds magnitudes from 2**-24 (subnormal; with all its bits from 2**-14 on) to 65504. Loss scaling shifts
gradients to the right in this table. (Micikevicius et al. 2018, section 3.2, shows such a histogram.)
"""

import math
from typing import Dict, NamedTuple

import torch

#: Exponents that are told apart: all of float32's, and one more at either end for what a float64 may hold.
LOWEST, HIGHEST = -150, 128

#: float16: the exponents of its least number, of its least normal one, and the first beyond it; its greatest number.
TINY, NORMAL, BEYOND, GREATEST = -24, -14, 16, 65504.0

#: Elements that are looked at together: bounds the memory.
CHUNK = 1 << 20

#: Rows of a table, at most; the characters of its longest bar; the share of the values that gets no rows of its own.
ROWS, BAR, FEW = 30, 40, 0.001

#: The share of values with fewer bits that is worth a word.
MANY = 0.1

_ZEROS, _BAD, _OVER, _FIRST = 0, 1, 2, 3  # the places in a vector of counts


class Histogram(NamedTuple):
    """How many values of which magnitude.

    ``counts`` maps an exponent ``e`` to the number of values in ``2**e <= |x| < 2**(e + 1)``; ``over`` counts those
    over 65504.
    """

    counts: Dict[int, int]
    zeros: int = 0
    non_finite: int = 0
    over: int = 0

    @property
    def nonzero(self):
        """How many values are finite and not 0."""
        return sum(self.counts.values())

    def lost(self, scale=1.0):
        """Return the share of nonzero values that are under 2**-24 after scaling by a power of two."""
        shift = math.floor(math.log2(scale))
        return self._share(-math.inf, TINY - shift)

    def subnormal(self):
        """Return the share of nonzero values from 2**-24 up to 2**-14, which float16 keeps with fewer bits."""
        return self._share(TINY, NORMAL)

    def overflowing(self):
        """Return the share of nonzero values over 65504, unscaled."""
        return self.over / self.nonzero if self.nonzero else 0.0

    def _share(self, start, end):
        inside = sum(count for exponent, count in self.counts.items() if start <= exponent < end)
        return inside / self.nonzero if self.nonzero else 0.0

    def keeping_scale(self):
        """Return the least power of two by which no value is lost, or None without values."""
        return 2.0 ** max(TINY - min(self.counts), 0) if self.counts else None

    def fitting_scale(self):
        """Return the greatest power of two by which no value leaves float16, or None without values."""
        return 2.0 ** (BEYOND - 2 - max(self.counts)) if self.counts else None

    def verdict(self):
        """Return in a sentence or two whether loss scaling is needed."""
        if not self.counts:
            return "No gradient but 0 was seen."
        bad = "Values that were inf or nan: {:,}. ".format(self.non_finite) if self.non_finite else ""
        return bad + self._verdict()

    def _verdict(self):
        if self.over:
            return (
                "{} of the values are over 65504: float16 cannot hold them at any scale; bfloat16 (O4, O5) can.".format(
                    _percent(self.overflowing())
                )
            )
        lost, fewer = self.lost(), self.subnormal()
        keeping, fitting = self.keeping_scale(), self.fitting_scale()
        if not lost and fewer < MANY:
            return "Plain float16 would keep every value: loss scaling is not needed for these gradients."
        if not lost:
            kept = "Plain float16 would make no value 0, but keep {} with fewer bits; a loss scale up to {} fits."
            return kept.format(_percent(fewer), _power(fitting))
        needed = "Plain float16 would make {} of the nonzero values 0".format(_percent(lost))
        if keeping <= fitting:
            return "{}; a loss scale from {} to {} keeps them all.".format(needed, _power(keeping), _power(fitting))
        return "{}; a loss scale of {}, the most that fits, makes that {}.".format(
            needed, _power(fitting), _percent(self.lost(fitting))
        )

    def table(self, title="Gradients by magnitude"):
        """Return the histogram and the verdict as text."""
        total = self.nonzero + self.zeros
        lines = ["{}: {:,} values, {} of them 0".format(title, total, _percent(self.zeros / max(total, 1)))]
        rows = self._rows()
        most = max([count for _, _, count in rows] or [1])
        zone = None
        for start, end, count in rows:
            if zone != _zone(start):
                zone = _zone(start)
                lines.append("  {}".format(self._heading(zone)))
            bar = "#" * max(round(count / most * BAR), 1 if count else 0)
            span = "2^{:<4} to".format(start) if start > -math.inf else " " * 4 + "under"
            lines.append("    {:<9} 2^{:<4} {:>7}  {}".format(span, end, _percent(count / self.nonzero), bar).rstrip())
        return "\n".join(lines + [self.verdict()])

    def _heading(self, zone):
        start, end, words = _ZONES[zone]
        return "{}: {}".format(words, _percent(self._share(start, end)))

    def _rows(self):
        """Return (exponent from, exponent to, count) without gaps; a row never crosses a bound of float16."""
        if not self.counts:
            return []
        first, last = self._start_of_rows(), max(self.counts) + 1
        width = 1
        while (last - first) / width > ROWS:
            width *= 2
        below = sum(count for exponent, count in self.counts.items() if exponent < first)
        rows, start = [(-math.inf, first, below)] if below else [], first
        while start < last:
            end = min((start // width + 1) * width, _ZONES[_zone(start)][1], last)
            rows.append((start, end, sum(self.counts.get(exponent, 0) for exponent in range(start, end))))
            start = end
        return rows

    def _start_of_rows(self):
        """Return the least exponent, but for a tail of very few lost values."""
        below = 0
        for exponent in sorted(self.counts):
            below += self.counts[exponent]
            if below > FEW * self.nonzero or exponent >= TINY:
                return exponent
        return min(self.counts)


_ZONES = (
    (-math.inf, TINY, "under 2^-24, 0 in plain float16"),
    (TINY, NORMAL, "subnormal, kept with fewer bits"),
    (NORMAL, BEYOND, "kept in full"),
    (BEYOND, math.inf, "beyond float16"),
)


def _zone(exponent):
    return next(index for index, (start, end, _) in enumerate(_ZONES) if start <= exponent < end)


class Counts:
    """Counts of magnitudes that stay on their devices until ``read``.

    Args:
        sample: about how many values of a tensor to look at, evenly spread, each counted for its neighbours; None for
        all.
    """

    def __init__(self, sample=None):
        self._sample = sample
        self._vectors = {}  # device -> int64 counts

    def take_in(self, tensors):
        """Count the values of floating tensors."""
        for tensor in tensors:
            if hasattr(tensor, "to_local"):
                tensor = tensor.to_local()
            if tensor.is_sparse:
                tensor = tensor.coalesce()._values()
            if not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            with torch.no_grad():
                self._count(tensor.detach().reshape(-1))

    def _count(self, values):
        stride = 1 if self._sample is None else -(-values.numel() // self._sample)
        if values.device.type == "mps":  # it has no float64
            values = values.cpu()
        counts = self._vectors.get(values.device)
        if counts is None:
            counts = torch.zeros(_FIRST + HIGHEST - LOWEST + 1, dtype=torch.int64, device=values.device)
            self._vectors[values.device] = counts
        for chunk in values[::stride].split(CHUNK):
            places, over = _places(chunk.to(torch.float64).abs())
            counts.index_add_(0, places, torch.full_like(places, stride))
            counts[_OVER] += over * stride

    def read(self):
        """Return the ``Histogram``; waits for the devices."""
        totals = [0] * (_FIRST + HIGHEST - LOWEST + 1)
        for vector in self._vectors.values():
            totals = [total + count for total, count in zip(totals, vector.tolist())]
        counts = {LOWEST + index: count for index, count in enumerate(totals[_FIRST:]) if count}
        return Histogram(counts, totals[_ZEROS], totals[_BAD], totals[_OVER])


def _places(values):
    """Return the places of float64 magnitudes in a vector of counts, and how many are over 65504."""
    finite = values - values == 0
    counted = finite & (values > 0)
    ones = torch.ones_like(values)
    known = torch.where(counted, values, ones)
    exponents = torch.log2(known).floor()
    exponents = exponents - (torch.pow(2.0, exponents) > known).to(values.dtype)
    exponents = exponents + (torch.pow(2.0, exponents + 1) <= known).to(values.dtype)
    places = exponents.clamp(LOWEST, HIGHEST) - (LOWEST - _FIRST)
    places = torch.where(counted, places, torch.where(finite, ones * _ZEROS, ones * _BAD))
    return places.to(torch.int64), (counted & (values > GREATEST)).sum()


def _percent(share):
    if share and share < 0.001:
        return "<0.1 %"
    return "{:.1f} %".format(100 * share)


def _power(scale):
    power = "2^{}".format(round(math.log2(scale)))
    return "{} ({:.0f})".format(power, scale) if 1 <= scale <= 2**24 else power
