"""float32 values as a bfloat16 weight, a remainder of 16 bits and, for few elements, one more bit; exactly.

The weight is the float32 value rounded to nearest, ties to even, as every cast to bfloat16 is. As bit patterns (int32)

    value = weight * 2**16 + remainder,    -2**15 <= remainder <= 2**15

Patterns of one sign are ordered as the values are, so this holds for every finite value, subnormals included, and where
a finite value rounds to infinity. An odd weight has the 2**16 - 1 remainders strictly between the bounds, since ties go
to its even neighbours. An even weight has both bounds too: 2**16 + 1 values, one more than 16 bits can tell apart.
So no code of 16 bits is exact. Here -2**15 is stored for both bounds, and the elements whose remainder is +2**15 are
listed (``Ties``): one in 2**17 of random values, all of a tensor of such constants. NaN stays NaN.

Tensors are 1-D, dense and alike in size. They are treated in pieces, so that temporaries are small.
"""

import torch

from ...support.torch_compat import fake_tensors

#: Elements whose int32 temporaries exist at the same time: on a CPU they fit into its cache.
PIECE = 1 << 16
DEVICE_PIECE = 1 << 21

_SHIFT = 1 << 16
_TIE = 1 << 15


class Ties:
    """Which elements of a 1-D tensor have the remainder +2**15: their indices, or one bit for each element.

    Indices are kept where they are fewer bytes. Counting them waits for the device, so on other devices than a CPU
    there are bits: 1/8 byte for each element.

    Args:
        size: the number of elements.
        device: their device.
    """

    def __init__(self, size, device):
        self._size = size
        self._indices = []  # int64 tensors
        self._bits = None  # uint8, eight elements each
        if device.type != "cpu":
            self._bits = torch.zeros(-(-size // 8), dtype=torch.uint8, device=device)

    def add(self, start, marks):
        """Add the elements from ``start``, a multiple of 8, that are True in ``marks``, a bool tensor of shape (n,)."""
        if fake_tensors.is_fake_type(type(marks)):  # no values
            return
        if self._bits is None:
            found = marks.nonzero().view(-1)
            if not found.numel():
                return
            self._indices.append(found + start)
            if 8 * sum(each.numel() for each in self._indices) <= self._size // 8:
                return
            self._bits = torch.zeros(-(-self._size // 8), dtype=torch.uint8, device=marks.device)
            for indices in self._indices:
                for bit in range(8):
                    self._bits[indices[indices % 8 == bit] >> 3] += 1 << bit
            self._indices = []
            return
        padded = torch.zeros(-(-marks.numel() // 8) * 8, dtype=torch.uint8, device=marks.device)
        padded[: marks.numel()] = marks
        self._bits[start // 8 : start // 8 + padded.numel() // 8] = (padded.view(-1, 8) * self._weights()).sum(
            1, dtype=torch.uint8
        )

    def add_to(self, patterns, start=0):
        """Add 2**16 to the listed elements of int32 ``patterns``, the elements from ``start``, a multiple of 8."""
        if self._bits is None:
            for indices in self._indices:
                inside = indices[(indices >= start) & (indices < start + patterns.numel())]
                if inside.numel():
                    patterns[inside - start] += _SHIFT
            return
        packed = self._bits[start // 8 : -(-(start + patterns.numel()) // 8)]
        marks = (packed.view(-1, 1) & self._weights() != 0).view(-1)[: patterns.numel()]
        patterns.add_(marks.to(torch.int32), alpha=_SHIFT)

    def memory(self):
        """Return the tensors that hold the list."""
        return self._indices if self._bits is None else [self._bits]

    def _weights(self):
        return torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=self._bits.device)


def split(values, weights):
    """Return what the bfloat16 weights of float32 values lack of them.

    Args:
        values: float32.
        weights: int16: the bit patterns of the bfloat16 weights, which are ``values`` rounded.

    Returns:
        The remainders, int16, and the ``Ties``.
    """
    patterns, ties = values.view(torch.int32), Ties(values.numel(), values.device)
    remainders = torch.empty(values.shape, dtype=torch.int16, device=values.device)
    for start, end in _pieces(values):
        difference = weights[start:end].to(torch.int32).mul_(_SHIFT)
        torch.sub(patterns[start:end], difference, out=difference)
        ties.add(start, difference == _TIE)
        remainders[start:end].copy_(difference)  # +2**15 becomes -2**15
    return remainders, ties


def join(weights, remainders, ties, first=0):
    """Return the float32 values of bfloat16 weights.

    Args:
        weights: see ``split``.
        remainders, ties: what it has returned.
        first: the index in ``ties`` of the first value, a multiple of 8.
    """
    values = torch.empty(remainders.shape, dtype=torch.float32, device=remainders.device)
    patterns = values.view(torch.int32)
    for start, end in _pieces(values):
        piece = weights[start:end].to(torch.int32).mul_(_SHIFT).add_(remainders[start:end])
        ties.add_to(piece, first + start)
        patterns[start:end].copy_(piece)
    return values


def _pieces(values):
    size = PIECE if values.device.type == "cpu" else DEVICE_PIECE
    return [(start, min(start + size, values.numel())) for start in range(0, values.numel(), size)]
