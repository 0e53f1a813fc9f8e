"""The largest absolute values of the last passes, by name, and which of them grow.

``PassRecord`` objects keep their numbers on the device; those of a few passes are read together.
"""

import math
from collections import deque
from typing import NamedTuple, Tuple

import torch

from .tensor_stats import low_dtype

#: Passes whose maxima are read together: one wait for the device in so many passes.
READ_EVERY = 4

#: Passes that are kept for each loss.
KEPT = 16

#: What is recorded: of ``PassRecord``.
KINDS = ("outputs", "output_gradients", "param_gradients")


#: The passes over which growth is judged, the passes ahead for which it is foreseen, and how near to the largest
#: number of the dtype, in powers of two, a value has to be.
WINDOW, AHEAD, NEAR = 8, 16, 6.0


class Maxima(NamedTuple):
    """The maxima of one pass: ``values`` and ``dtypes`` map (kind, name) to the largest value and to its dtype.

    Where a name occurs more than once in a pass, the largest counts; inf and nan are left out. Gradients are unscaled.
    """

    step: int
    scale: float
    values: dict
    dtypes: dict


class Growth(NamedTuple):
    """How the largest absolute value of one name has changed.

    ``name``: of a module or param; ``values``: of the last passes, oldest first.
    """

    kind: str
    name: str
    values: Tuple[float, ...]

    @property
    def factor(self):
        """How many times the first value the last one is; inf if the first is 0."""
        first, last = self.values[0], self.values[-1]
        return last / first if first else (math.inf if last else 1.0)


class Foreseen(NamedTuple):
    """An overflow that is foreseen.

    ``passes``: until then, if it goes on like this; ``limit``: the largest value that fits ``dtype``, at the loss scale
    ``scale``; ``casts``: whether the level computes anything in half.
    """

    growth: Growth
    passes: int
    dtype: str
    limit: float
    scale: float
    casts: bool


class RecentMaxima:
    """Keeps the ``Maxima`` of the last passes of each loss."""

    def __init__(self):
        self._unread = {}  # loss_id -> [PassRecord, …]
        self._passes = 0
        self._read = {}  # loss_id -> deque of Maxima, oldest first
        self._peaks = {}  # (loss_id, kind, name) -> the largest value of all passes

    def add(self, record):
        """Add a ``PassRecord``. Return whether it is time to look for growth: after every ``READ_EVERY`` passes."""
        unread = self._unread.setdefault(record.loss_id, [])
        unread.append(record)
        del unread[:-KEPT]
        self._passes += 1
        return self._passes % READ_EVERY == 0

    def of_loss(self, loss_id):
        """Return the ``Maxima`` of the last passes of a loss, oldest first; waits for the device."""
        kept = self._read.setdefault(loss_id, deque(maxlen=KEPT))
        for maxima in _read(self._unread.pop(loss_id, [])):
            kept.append(maxima)
            for key, value in maxima.values.items():
                key = (loss_id,) + key
                self._peaks[key] = max(value, self._peaks.get(key, 0.0))
        return list(kept)

    def growths(self, loss_id, before, count):
        """Return the ``Growth`` of every name in the last ``count`` passes of a loss before step ``before``."""
        passes = [each for each in self.of_loss(loss_id) if each.step < before][-count:]
        series = {}
        for each in passes:
            for key, value in each.values.items():
                series.setdefault(key, []).append(value)
        return [Growth(key[0], key[1], tuple(values)) for key, values in series.items() if len(values) > 1]

    def foreseen(self, record, policy):
        """Return the ``Foreseen`` overflow that comes first if all goes on growing like this, or None.

        Only a value that is the largest of all passes counts; of gradients only with a static loss scale, since a
        dynamic one follows them.

        Args:
            record: the ``PassRecord`` that was added last.
            policy: the session's.
        """
        passes = self.of_loss(record.loss_id)
        low = low_dtype(policy)
        found = []
        for growth in self.growths(record.loss_id, math.inf, WINDOW):
            key = growth.kind, growth.name
            scale, dtype = 1.0, passes[-1].dtypes.get(key, low)
            if growth.kind != "outputs":
                if record.scaler.dynamic:
                    continue
                scale = passes[-1].scale
            limit = torch.finfo(dtype).max / scale
            is_peak = growth.values[-1] >= self._peaks[(record.loss_id,) + key]
            count = passes_to_overflow(growth.values, limit) if is_peak else None
            if count is not None:
                found.append(
                    Foreseen(growth, count, str(dtype).partition(".")[2], limit, scale, low is not policy.dtypes.high)
                )
        return min(found, key=lambda each: each.passes) if found else None

    def clear(self):
        """Forget everything."""
        self._unread.clear()
        self._read.clear()
        self._peaks.clear()


def _read(records):
    """Return the ``Maxima`` of records; one read per device and dtype."""
    vectors, places = {}, []
    for record in records:
        for kind in KINDS:
            scalars = getattr(record, kind)
            for positions, vector in scalars.vectors:
                key = vector.device, vector.dtype
                places.append((record, kind, positions, key, sum(len(each) for each in vectors.get(key, ()))))
                vectors.setdefault(key, []).append(vector)
    numbers = {key: torch.cat(each).tolist() for key, each in vectors.items()}
    found = {id(record): Maxima(record.step, float(record.scale), {}, {}) for record in records}
    for record, kind, positions, key, start in places:
        names = getattr(record, kind).names
        maxima = found[id(record)]
        for place, position in enumerate(positions):
            value, name = numbers[key][start + place], (kind, names[position])
            if math.isfinite(value) and value >= maxima.values.get(name, 0.0):
                maxima.values[name] = value
                if kind == "outputs":
                    maxima.dtypes[name] = record.output_dtypes[position]
    return [found[id(record)] for record in records]


def passes_to_overflow(values, limit):
    """Return in how many passes a value that grows exceeds ``limit``, if it goes on so; None if that is not foreseen.

    Each of the second half of the values must be as large as each of the first, with at most one fall between
    neighbours: of 8 numbers in random order 23 of 40320 do so. The rate is the smaller of those of the two halves, in
    powers of two per pass, so that what levels off is not foreseen to overflow. The limit must be reached within
    ``AHEAD`` passes, and be nearer than 2**``NEAR``.

    Args:
        values: the largest absolute values of the last ``WINDOW`` passes, oldest first.
        limit: the largest number of the dtype.
    """
    if len(values) < WINDOW or not min(values) > 0.0:
        return None
    half = WINDOW // 2
    falls = sum(1 for before, after in zip(values, values[1:]) if after < before)
    if falls > 1 or min(values[half:]) < max(values[:half]):
        return None
    logs = [math.log2(value) for value in values]
    rate = min((logs[half] - logs[0]) / half, (logs[-1] - logs[half]) / (WINDOW - 1 - half))
    room = math.log2(limit) - logs[-1]
    if room > NEAR or rate <= 0.0 or room > AHEAD * rate:
        return None
    return max(math.ceil(room / rate), 1)
