"""The script's own ``torch.autocast`` regions under a forced level.

A region that casts does nothing by itself: the level casts. A region with ``enabled=False`` computes in float32, at
    least within another region or a model's ``forward``. If a script never enters a region that casts, it was started
    without its own mixed precision, and the level decides.
"""

import contextlib
import inspect
import sys
import threading

import torch

from ...engine.casting.refused_calls import products_in_float32
from ...engine.models.forward_conversion import ForwardConversion


class AutocastRegions:
    """Replaces the methods of ``torch.autocast``, which ``torch.cuda.amp.autocast`` inherits.

    Args:
        forced: the ``ForcedLevel``.
    """

    def __init__(self, forced):
        self._forced = forced
        self._has_cast = False  # whether the script has entered a region that casts
        self._local = threading.local()

    def patch(self, patches):
        """Replace the methods until ``patches`` is undone."""
        self._signature = inspect.signature(torch.autocast.__init__)
        patches.wrap(torch.autocast, "__init__", self._made)
        patches.wrap(torch.autocast, "__enter__", self._entered)
        patches.wrap(torch.autocast, "__exit__", self._left)

    def _made(self, make, region, *args, **kwargs):
        make(region, *args, **kwargs)
        # torch disables regions of a device that is not available, which the level does not need.
        region.is_asked_for = bool(self._signature.bind(region, *args, **kwargs).arguments.get("enabled", True))

    def _entered(self, enter, region):
        if not self._forced.rules():
            self._stack().append(None)
            return enter(region)
        context = self._context(region.is_asked_for)
        context.__enter__()
        self._stack().append(context)
        return region

    def _left(self, leave, region, *error):
        context = self._stack().pop()
        return leave(region, *error) if context is None else context.__exit__(*error)

    def is_float32(self):
        """Return whether this thread is in a region that computes in float32."""
        return any(isinstance(each, _Float32) for each in self._stack())

    def _stack(self):
        """Return the contexts of the regions that this thread is in, innermost last; None for one of torch's own."""
        return self._local.__dict__.setdefault("stack", [])

    def _context(self, casts):
        session = self._forced.session
        self._has_cast = self._has_cast or casts
        if session is None:
            return contextlib.nullcontext()
        is_in_forward = _is_in_forward()
        if casts:
            return session.process_casts.region() if self.is_float32() else contextlib.nullcontext()
        if not (self._has_cast or is_in_forward):
            return contextlib.nullcontext()
        float32 = _Float32()
        float32.enter_context(session.cast_backend.paused())
        float32.enter_context(products_in_float32())
        return float32


class _Float32(contextlib.ExitStack):
    """The contexts of a region with ``enabled=False``, entered at once."""


def _is_in_forward():
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is ForwardConversion.run.__code__:
            return True
        frame = frame.f_back
    return False
