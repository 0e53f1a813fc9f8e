"""``ThreadBlock``, a context manager that changes the calling thread and ends although an interrupt keeps it open.

Python handles a signal as ``__exit__`` begins, for one: nothing would be undone. Such a block ends when one around it
does, or when the session is closed, which calls ``end_thread_blocks``.
"""

import functools
import threading

import torch


class _Thread(threading.local):
    def __init__(self):
        self.blocks = []  # that are open in this thread, outermost first


_thread = _Thread()


class ThreadBlock:
    """Base class: a block is recorded before ``begin`` changes anything, until ``end`` has undone that.

    ``end`` must allow that nothing was changed yet, and that it runs again.
    """

    __slots__ = ()

    def __enter__(self):
        _thread.blocks.append(self)
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info):
        try:
            if _thread.blocks and _thread.blocks[-1] is self:
                self.end()
                del _thread.blocks[-1]
            else:
                _end(self)
        except BaseException:
            _end(self)  # it was interrupted
            raise


def _end(outermost):
    """End this block if it is open, and before it those within it, which were left open."""
    blocks = _thread.blocks
    while outermost in blocks:
        blocks[-1].end()
        del blocks[-1]


def end_thread_blocks():
    """End the blocks that are open in this thread. Gradients that are enabled now stay so.

    A block may have begun within a backward pass, where they are disabled, which has ended since.
    """
    are_enabled = torch.is_grad_enabled()
    if _thread.blocks:
        _end(_thread.blocks[0])
    if are_enabled:
        torch.set_grad_enabled(True)


class grad_enabled(ThreadBlock):
    """Context manager: gradients are enabled or not, as in a ``torch.set_grad_enabled`` block."""

    __slots__ = ("begin", "end")

    def __init__(self, mode):
        self.begin = functools.partial(torch.set_grad_enabled, mode)
        self.end = functools.partial(torch.set_grad_enabled, torch.is_grad_enabled())
