"""Casts by wrappers alone: one around every function of the op table, on any torch.

Owns: ``PatchedBackend``.
Must not touch: torch's autocast.
The surprise: it sees only what Python calls. What C++ calls inside one function is not cast, as under Apex.
"""

from .wrapping import WrappingBackend


class PatchedBackend(WrappingBackend):
    """Wrap ``torch``, ``torch.Tensor`` and ``torch.nn.functional`` as the rows say; the base class does it all."""

    name = "patched"
