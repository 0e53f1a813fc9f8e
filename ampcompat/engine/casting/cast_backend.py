"""``CastBackend``, the interface of the cast backends, and itself the backend of the levels that cast no functions.

``paused``, ``entered`` and ``region`` act on the calling thread; ``open`` acts on the whole process.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Collection, ContextManager, Optional

from ...support.patching import PatchStack

_NOTHING_TO_PAUSE = nullcontext()  # it can be entered again within itself, and by several threads


class CastBackend:
    """Makes the functions of torch run in the dtype that the op table gives them; this class casts nothing.

    One backend serves one session. Between ``open`` and the undoing of the patch stack that ``open`` was given, a
    function in the table casts its floating tensor arguments by the rule of its row, in every thread of the process,
    except where ``paused`` applies. That stack undoes everything that ``open`` changes.
    """

    #: The name by which users select it.
    name: str = "none"

    def open(self, patches: PatchStack, is_regional: bool = False) -> None:
        """Turn the casts on for the whole process.

        Args:
            patches: the ``PatchStack`` that undoes it.
            is_regional: cast only in threads that are in a ``region``.
        """

    def active(self) -> bool:
        """Return whether a function called now, in this thread, would be cast."""
        return False

    def paused(self) -> ContextManager[None]:
        """Return a context manager with casts off in this thread: nestable, restored when the body raises."""
        return _NOTHING_TO_PAUSE

    def uncast_forward(self) -> ContextManager[None]:
        """Return a context manager for the ``forward`` of a model at a level that casts no functions: casts off."""
        return self.paused()

    def region(self) -> ContextManager[None]:
        """Return a context manager with casts on in this thread, even where it has paused them: the innermost wins."""
        return self.paused()

    def entered(self) -> Optional[ContextManager[None]]:
        """Return a context manager with casts on in this thread that keeps copies of weights; None if they are paused.

        Initialized models enter it in ``forward``, so that every thread computes as the main thread does, and a weight
        that is used twice is cast once. Within an ``uncast_forward`` it is a ``region``. The outermost one drops the
        copies when it ends.
        """

    def set_devices(self, types: Optional[Collection[str]]) -> None:
        """Cast only tensors on these device types, whether open or not. Without this call all are cast.

        Args:
            types: a collection of device types ("cpu", "cuda", …), or None for all.
        """

    def stop(self) -> None:
        """Turn the casts off for good in this process, a worker of a ``DataLoader``."""

    def bind_casts(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, made to run with casts on or off as they are in this thread now."""
        return function

    def clear_cache(self) -> None:
        """Drop the copies of weights that this thread keeps, if it is in a forward pass."""

    def wrap(self, function: Callable[..., Any], rule: str) -> Callable[..., Any]:
        """Return ``function``, made to cast its arguments by ``rule`` (``op_table.expansion``) while casts are active.

        Args:
            function: any callable; tensors may be nested in its arguments and keywords.
            rule: "half", "float", "promote", "sequence" or "banned".
        """
        return function
