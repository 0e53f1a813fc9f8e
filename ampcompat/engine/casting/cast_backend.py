"""``CastBackend``, the interface of the cast backends, and ``NoCastBackend``, for the levels that cast no functions.

``paused``, ``entered`` and ``region`` act on the calling thread; ``open`` acts on the whole process.
"""

from __future__ import annotations

import abc
from contextlib import contextmanager
from typing import Any, Callable, Collection, ContextManager, Iterable, Iterator, Optional, TypeVar

from ...support.patching import PatchStack

Function = TypeVar("Function", bound=Callable[..., Any])


def do_nothing() -> None:
    """Do nothing."""


class CastBackend(abc.ABC):
    """Makes the functions of torch run in the dtype that the op table gives them.

    One backend serves one session. Between ``open`` and the undoing of the patch stack that ``open`` was given, a
    function in the table casts its floating tensor arguments by the rule of its row, in every thread of the process,
    except where ``paused`` applies. That stack undoes everything that ``open`` changes.
    """

    #: The name by which users select it.
    name: str = "abstract"

    @abc.abstractmethod
    def open(self, patches: PatchStack, on_move: Callable[[], None] = do_nothing) -> None:
        """Turn the casts on for the whole process.

        Args:
            patches: the ``PatchStack`` that undoes it.
            on_move: called without arguments whenever ``param.data`` is set to something on another device.
        """

    @abc.abstractmethod
    def active(self) -> bool:
        """Return whether a function called now, in this thread, would be cast."""

    @abc.abstractmethod
    def paused(self) -> ContextManager[None]:
        """Return a context manager with casts off in this thread: nestable, restored when the body raises."""

    @abc.abstractmethod
    def entered(self) -> Optional[ContextManager[None]]:
        """Return a context manager with casts on in this thread, or None if they are on already or paused.

        Initialized models enter it in ``forward``, so that every thread computes as the main thread does. Within an
        ``uncast_forward`` it is a ``region``.
        """

    @abc.abstractmethod
    def uncast_forward(self) -> ContextManager[None]:
        """Return a context manager for the ``forward`` of a model at a level that casts no functions: casts off."""

    @abc.abstractmethod
    def set_devices(self, types: Optional[Collection[str]]) -> None:
        """Cast only tensors on these device types, whether open or not. Without this call all are cast.

        Args:
            types: a collection of device types ("cpu", "cuda", …), or None for all.
        """

    @abc.abstractmethod
    def limit_to_regions(self) -> None:
        """Limit the casts to threads that are in a ``region``. Call it before ``open``."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Turn the casts off for good in this process, a worker of a ``DataLoader``."""

    @abc.abstractmethod
    def region(self) -> ContextManager[None]:
        """Return a context manager with casts on in this thread, even where it has paused them: the innermost wins."""

    @abc.abstractmethod
    def bind_casts(self, function: Function) -> Function:
        """Return ``function``, made to run with casts on or off as they are in this thread now."""

    @abc.abstractmethod
    def clear_cache(self, weights: Callable[[], Iterable[Any]] = list) -> None:
        """Drop the copies of weights that this thread has cached, and those of some weights that any thread has cached.

        Args:
            weights: () -> these weights; it is called only if other threads have cached copies.
        """

    @abc.abstractmethod
    def wrap(self, function: Function, rule: str) -> Function:
        """Return ``function``, made to cast its arguments by ``rule`` (``op_table.expansion``) while casts are active.

        Args:
            function: any callable; tensors may be nested in its arguments and keywords.
            rule: "half", "float", "promote", "sequence" or "banned".
        """


class NoCastBackend(CastBackend):
    """The backend of O0, O2, O3 and O5, which casts nothing. With it, callers need no special case."""

    name = "none"

    def open(self, patches: PatchStack, on_move: Callable[[], None] = do_nothing) -> None:
        pass

    def active(self) -> bool:
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        yield

    region = uncast_forward = paused

    def entered(self) -> None:
        return None

    def set_devices(self, types: Optional[Collection[str]]) -> None:
        pass

    def limit_to_regions(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def bind_casts(self, function: Function) -> Function:
        return function

    def clear_cache(self, weights: Callable[[], Iterable[Any]] = list) -> None:
        pass

    def wrap(self, function: Function, rule: str) -> Function:
        return function
