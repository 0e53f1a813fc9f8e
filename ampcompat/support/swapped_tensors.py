"""``torch.utils.swap_tensors`` of params that are referenced weakly, which torch refuses.

``load_state_dict`` and ``Module.to`` call it under ``torch.__future__.set_swap_module_params_on_conversion(True)``. A
param stays the same object, with another tensor in it, so that references to it can be dropped and made again.
"""

import functools
import weakref

import torch

from .patching import PatchStack

#: Objects with a method ``release(tensor)``: it drops their weak references to a tensor, and returns a function that
#: makes them again, or None.
holders = weakref.WeakSet()


_patches = PatchStack()
_uses = []  # one item for each ``allow`` that was not undone


def allow(patches):
    """Let ``swap_tensors``, where torch has it, work on what the ``holders`` reference; undone by ``patches``."""
    function = getattr(torch.utils, "swap_tensors", None)
    if function is not None:
        if not _uses:
            _patches.redirect(function, _released)
        _uses.append(True)
        patches.defer(_end_use)


def _end_use():
    _uses.pop()
    if not _uses:
        _patches.undo()


def _released(swap_tensors):
    @functools.wraps(swap_tensors)
    def released(first, second):
        restores = [holder.release(tensor) for tensor in (first, second) for holder in list(holders)]
        try:
            return swap_tensors(first, second)
        finally:
            for restore in restores:
                if restore is not None:
                    restore()

    return released
