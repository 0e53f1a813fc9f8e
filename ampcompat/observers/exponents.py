"""Statistics of each tensor's values, and counts of them by their exponents, computed on the tensors' devices."""

import math
from typing import NamedTuple, Tuple

import torch

from ..support.torch_compat.thread_blocks import grad_enabled
from .values import dense_values

#: The largest number of values of a tensor that ``TensorSamples`` counts, and their exponents; smaller or larger ones
#: count as the first or last.
SAMPLE = 1024
SAMPLE_LOWEST, SAMPLE_HIGHEST = -64, 31
_BINS = SAMPLE_HIGHEST - SAMPLE_LOWEST + 1


def exponents_of(values):
    """Return the largest e with 2**e <= x of positive values x, as floats; -inf for 0."""
    exponents = torch.log2(values).floor()
    # A rounded logarithm may be off by one near powers of two, so it is corrected by exact comparisons.
    exponents = exponents - (torch.pow(2.0, exponents) > values).to(values.dtype)
    return exponents + (torch.pow(2.0, exponents + 1) <= values).to(values.dtype)


class Stats(NamedTuple):
    """Statistics of a tensor's values, without those that are inf or nan.

    ``minimum`` and ``maximum`` are exact, and inf or nan if one value is. ``smallest``: of the nonzero absolute values.
    ``exponents``: pairs (e, the number of values in 2**e <= abs(x) < 2**(e + 1)), ascending. ``size``: of the tensor.
    """

    minimum: float
    maximum: float
    smallest: float
    rms: float
    zeros: float
    size: int
    exponents: Tuple[Tuple[int, float], ...]

    @property
    def largest(self):
        """The largest absolute value; inf or nan if one value is."""
        return max(abs(self.minimum), abs(self.maximum)) if self.minimum == self.minimum else math.nan

    @property
    def nonzero(self):
        """The number of counted values that are not 0."""
        return sum(count for _, count in self.exponents)

    def share_below(self, exponent, power=0):
        """Return the share of the nonzero values that are below 2**exponent, weighted by abs(x)**power."""
        end = math.floor(exponent)
        if not self.exponents or self.exponents[0][0] >= end:
            return 0.0
        weights = [(e, count * 2.0 ** (power * e)) for e, count in self.exponents]
        return sum(weight for e, weight in weights if e < end) / sum(weight for _, weight in weights)


class TensorSamples:
    """Samples tensors, and returns the ``Stats`` of all at once.

    The largest and smallest values of a tensor are exact; everything else is based on ``SAMPLE`` evenly spaced values.
    """

    def __init__(self):
        self._sampled = []  # (key, size, sampled values, (minimum, maximum) of all or None)

    def add(self, key, tensor):
        """Sample a tensor's current values; tensors without floating-point values have no ``Stats``."""
        with grad_enabled(False):
            values = dense_values(tensor)
            if values is None:
                return
            flat = values.reshape(-1)
            size = flat.numel()
            if size <= SAMPLE:
                self._sampled.append((key, size, flat.clone(), None))
            else:
                sample = flat[:: -(-size // SAMPLE)].clone()
                self._sampled.append((key, size, sample, torch.aminmax(flat)))

    def clear(self):
        """Forget all samples."""
        self._sampled = []

    def read(self):
        """Return ``[(key, Stats), …]``, and forget the samples. The host waits for each device once."""
        sampled, self._sampled = self._sampled, []
        found = []
        for device in {values.device for _, _, values, _ in sampled}:
            own = [each for each in sampled if each[2].device == device]
            with grad_enabled(False):
                rows = _rows([each[2] for each in own], [each[3] for each in own]).cpu().tolist()
            found += [(key, _stats(size, row)) for (key, size, _, _), row in zip(own, rows)]
        return found


def _stats(size, row):
    minimum, maximum, smallest, square, zeros = row[:5]
    exponents = tuple((SAMPLE_LOWEST + place, count) for place, count in enumerate(row[5:]) if count)
    return Stats(minimum, maximum, smallest, math.sqrt(square) if square >= 0 else math.nan, zeros, size, exponents)


def _rows(samples, extrema):
    """Return a tensor with a row per sample: minimum, maximum, smallest, mean square, zeros, counts of exponents."""
    device = samples[0].device
    wide = torch.float32 if device.type == "mps" else torch.float64  # which has no float64
    values = torch.cat([sample.to(wide) for sample in samples])
    sizes = torch.tensor([sample.numel() for sample in samples])
    owners = torch.repeat_interleave(torch.arange(len(samples)), sizes).to(device)
    lowest = values.new_full((len(samples),), math.inf).scatter_reduce_(0, owners, values, "amin")
    highest = values.new_full((len(samples),), -math.inf).scatter_reduce_(0, owners, values, "amax")
    exact = [index for index, pair in enumerate(extrema) if pair is not None]
    if exact:
        places = torch.tensor(exact).to(device)
        lowest[places] = torch.stack([extrema[index][0].to(wide) for index in exact])
        highest[places] = torch.stack([extrema[index][1].to(wide) for index in exact])
    is_finite = torch.isfinite(values)
    sizes_there = torch.zeros_like(lowest).scatter_add_(0, owners, is_finite.to(wide))
    values = torch.where(is_finite, values, torch.zeros_like(values)).abs()
    is_zero = values == 0
    nonzero = torch.where(is_zero, torch.full_like(values, math.inf), values)
    smallest = values.new_full((len(samples),), math.inf).scatter_reduce_(0, owners, nonzero, "amin")
    square = torch.zeros_like(lowest).scatter_add_(0, owners, values * values) / sizes_there.clamp_min(1)
    zeros = torch.zeros_like(lowest).scatter_add_(0, owners, (is_zero & is_finite).to(wide))
    exponents = exponents_of(values).clamp(SAMPLE_LOWEST, SAMPLE_HIGHEST).long() - SAMPLE_LOWEST
    counts = values.new_zeros(len(samples) * _BINS)
    counts.scatter_add_(0, owners * _BINS + exponents, (~is_zero).to(wide))
    head = torch.stack([lowest, highest, smallest, square, zeros], 1)
    return torch.cat([head, counts.view(len(samples), _BINS)], 1)
