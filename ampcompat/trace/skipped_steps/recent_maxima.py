"""The largest absolute values of passes, by name, and which of them grow.

``PassRecord`` objects keep their numbers on the device; the numbers of a few passes are read together.
"""

import math
from collections import deque
from typing import NamedTuple, Tuple

import torch

from ...support.torch_compat import fake_tensors
from ...support.torch_compat.thread_context import is_capturing_cuda_graph
from ...support.torch_compat.torch_names import dtype_name
from ..values import Transfer, low_dtype
from .skip_facts import ModelPart

#: The number of passes whose maxima are read together, in one copy to the host.
READ_EVERY = 4

#: The number of passes that are kept for each loss: a skipped step may be explained that many passes later.
KEPT = 64

#: The number of copies that may be on their way before the host waits for a GPU.
SENT = 4

#: The recorded kinds of ``PassRecord``.
KINDS = ("outputs", "output_gradients", "param_gradients")

#: The number of passes over which growth is judged, the number of passes ahead for which an overflow is predicted, and
#: how near a value must be to the largest number of the dtype, in powers of two.
WINDOW, AHEAD, NEAR = 8, 16, 6.0


class Maxima(NamedTuple):
    """The maxima of one pass: ``values`` and ``dtypes`` map (kind, name) to the largest value and to its dtype.

    ``number``: of the pass, over all losses.

    If a name occurs more than once in a pass, the largest value counts; inf and nan are left out. Gradients are
    unscaled.
    """

    number: int
    step: int
    scale: float
    values: dict
    dtypes: dict


class Growth(NamedTuple):
    """How the largest absolute value of one name changed.

    ``name``: a ``ModelPart``; ``values``: of the last passes, oldest first.
    """

    kind: str
    name: ModelPart
    values: Tuple[float, ...]

    @property
    def factor(self):
        """The last value divided by the first; inf if the first is 0."""
        first, last = self.values[0], self.values[-1]
        return last / first if first else (math.inf if last else 1.0)


class Foreseen(NamedTuple):
    """A predicted overflow.

    ``passes``: the number of passes until then, if the growth continues; ``limit``: the largest value that fits
    ``dtype``, at the loss scale ``scale``.
    """

    growth: Growth
    passes: int
    dtype: str
    limit: float
    scale: float


class RecentMaxima:
    """Keeps the ``Maxima`` of recent passes of each loss.

    Attributes:
        passes: how many passes were added.
    """

    def __init__(self):
        self.passes = 0
        self._losses = {}  # loss_id -> _OfLoss

    def add(self, record):
        """Add a ``PassRecord``. Return whether ``READ_EVERY`` new maxima have arrived, without waiting for a GPU."""
        self.passes += 1
        return self._losses.setdefault(record.loss_id, _OfLoss()).add(record)

    def of_loss(self, loss_id):
        """Return the ``Maxima`` of recent passes of a loss, oldest first; waits for the device."""
        return self._losses.setdefault(loss_id, _OfLoss()).all_read()

    def largest_before(self, number):
        """Return a function: (kind, name) -> the largest value of all passes before one; None without one."""
        read = [maxima for loss_id in self._losses for maxima in self.of_loss(loss_id) if maxima.number < number]
        known = [each.values for each in read] + [loss.dropped for loss in self._losses.values()]
        return lambda *key: max([values[key] for values in known if key in values], default=None)

    def growths(self, loss_id, before, count):
        """Return the ``Growth`` of every name in the last ``count`` passes of a loss before step ``before``."""
        return _growths([each for each in self.of_loss(loss_id) if each.step < before][-count:])

    def foreseen(self, record, policy):
        """Return the first ``Foreseen`` overflow if values continue to grow as in the maxima so far, or None.

        Only a value that is the largest of all passes counts; gradients count only with a static loss scale, since a
        dynamic one adapts to them.

        Args:
            record: the last added ``PassRecord``.
            policy: the session's.
        """
        loss = self._losses[record.loss_id]
        passes = list(loss.read)
        low = low_dtype(policy)
        found = []
        for growth in _growths(passes[-WINDOW:]):
            key = growth.kind, growth.name
            scale, dtype = 1.0, passes[-1].dtypes.get(key, low)
            if growth.kind != "outputs":
                if record.scaler.dynamic:
                    continue
                scale = passes[-1].scale
            limit = torch.finfo(dtype).max / scale
            count = passes_to_overflow(growth.values, limit)
            if count is not None and growth.values[-1] >= loss.peak(key):
                found.append(Foreseen(growth, count, dtype_name(dtype), limit, scale))
        return min(found, key=lambda each: each.passes) if found else None

    def clear(self):
        """Forget everything."""
        self._losses.clear()


class _OfLoss:
    """The passes of one loss.

    Attributes:
        read: the ``Maxima`` that have arrived, oldest first.
        dropped: ``{(kind, name): the largest value}`` of the passes before them.
    """

    def __init__(self):
        self.read, self.dropped = deque(), {}
        self._unread = []  # PassRecord objects
        self._sent = []  # (PassRecord objects, the Transfer of their numbers), oldest first
        self._new = 0  # how many maxima have arrived since ``add`` returned True

    def add(self, record):
        self._unread.append(record)
        if not _can_be_read(record):
            del self._unread[:-KEPT]
            return False
        if len(self._unread) >= READ_EVERY:
            self._send()
        while self._sent and (self._sent[0][1].has_arrived() or len(self._sent) > SENT):
            self._take()
        is_enough = self._new >= READ_EVERY
        if is_enough:
            self._new = 0
        return is_enough

    def peak(self, key):
        return max([values[key] for values in [self.dropped] + [each.values for each in self.read] if key in values])

    def all_read(self):
        self._send()
        while self._sent:
            self._take()
        return list(self.read)

    def _send(self):
        records, self._unread = self._unread, []
        self._sent.append((records, Transfer([vector for each in records for _, _, vector in _vectors(each)])))

    def _take(self):
        records, transfer = self._sent.pop(0)
        numbers = iter(transfer.read())
        for record in records:
            self.read.append(_maxima(record, numbers))
            self._new += 1
        while len(self.read) > KEPT:
            for key, value in self.read.popleft().values.items():
                self.dropped[key] = max(value, self.dropped.get(key, 0.0))


def _can_be_read(record):
    """Return whether the numbers of a record can be read: they are not fake, and no CUDA graph is being captured."""
    vectors = [vector for _, _, vector in _vectors(record)]
    if any([fake_tensors.is_fake_type(type(vector)) for vector in vectors]):
        return False
    return not (any([vector.is_cuda for vector in vectors]) and is_capturing_cuda_graph())


def _growths(passes):
    """Return the ``Growth`` of every name in ``Maxima`` of passes."""
    series = {}
    for each in passes:
        for key, value in each.values.items():
            series.setdefault(key, []).append(value)
    return [Growth(key[0], key[1], tuple(values)) for key, values in series.items() if len(values) > 1]


def _maxima(record, numbers):
    """Return the ``Maxima`` of a record.

    Args:
        numbers: an iterator over the numbers of its ``_vectors``.
    """
    scale, values, dtypes = record.scale, {}, {}
    for kind, positions, _ in _vectors(record):
        found = next(numbers)
        if kind is None:
            (scale,) = found
            continue
        names = getattr(record, kind).names
        for position, value in zip(positions, found):
            key = kind, names[position]
            if math.isfinite(value) and value >= values.get(key, 0.0):
                values[key] = value
                if kind == "outputs":
                    dtypes[key] = record.output_dtypes[position]
    return Maxima(record.number, record.step, float(scale), values, dtypes)


def _vectors(record):
    """Yield (kind, positions, vector) of the numbers of a ``PassRecord``; kind None: its loss scale, if a tensor."""
    for kind in KINDS:
        for positions, vector in getattr(record, kind).vectors:
            yield kind, positions, vector
    if isinstance(record.scale, torch.Tensor):
        yield None, (0,), record.scale.reshape(1)


def passes_to_overflow(values, limit):
    """Return in how many passes a growing value exceeds ``limit`` if it continues; None if that is not predicted.

    Each of the second half of the values must be at least as large as each of the first half, with at most one decrease
    between neighbors; of 8 numbers, this holds for 23 of 40320 orders. The rate is the smaller of the rates of the two
    halves, in powers of two per pass, so that values that level off are not predicted to overflow. The limit must be
    reached within ``AHEAD`` passes, and be within a factor of 2**``NEAR``.

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
    margin = math.log2(limit) - logs[-1]
    if margin > NEAR or rate <= 0.0 or margin > AHEAD * rate:
        return None
    return max(math.ceil(margin / rate), 1)
