"""``FastLayerNorm``, the one-dimensional layer norm of ``apex.contrib``.

Apex supports about sixty sizes; this implementation supports any size.
"""

from ..normalization import FusedLayerNorm


class FastLayerNorm(FusedLayerNorm):
    """``FusedLayerNorm`` over the last dimension, of size ``hidden_size``."""

    def __init__(self, hidden_size, eps=1e-5, memory_efficient=False):
        super().__init__(hidden_size, eps, memory_efficient=memory_efficient)
        self.epsilon = eps
