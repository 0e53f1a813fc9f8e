"""``torch.utils.swap_tensors`` of params that are referenced weakly, which torch refuses.

``load_state_dict`` and ``Module.to`` call it under ``torch.__future__.set_swap_module_params_on_conversion(True)``. A
param stays the same object, with another tensor in it, so that references to it can be dropped and made again.
"""

import functools
import weakref

import torch

#: Objects with a method ``release(tensor)``: it drops their weak references to a tensor, and returns a function that
#: makes them again, or None.
holders = weakref.WeakSet()


def allow(patches):
    """Let ``swap_tensors``, where torch has it, work on what the ``holders`` reference; undone by ``patches``."""
    function = getattr(torch.utils, "swap_tensors", None)
    if function is not None and not hasattr(function, "__wrapped__"):
        patches.redirect(function, _released)


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
