"""The patched backend: one wrapper around every function of the op table, on any torch.

As in Apex, it casts only what Python calls, not what C++ calls inside a function.
"""

from .wrapping import WrappingBackend


class PatchedBackend(WrappingBackend):
    """Wrap ``torch``, ``torch.Tensor`` and ``torch.nn.functional`` by the op table."""

    name = "patched"
