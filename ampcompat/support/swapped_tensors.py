"""``torch.utils.swap_tensors`` for params with weak references, which torch refuses.

``load_state_dict`` and ``Module.to`` call it under ``torch.__future__.set_swap_module_params_on_conversion(True)``. A
param stays the same object with a different tensor, so references to it can be dropped and created again.
"""

import torch

from .live_objects import WeakList
from .patching import PatchStack

#: Objects with a method ``release(tensor)`` that drops their weak references to a tensor, and returns a function that
#: creates them again, or None.
holders = WeakList()

_patches = PatchStack()
_uses = set()  # one item for each ``allow`` that was not undone


def allow(patches):
    """Make ``swap_tensors``, if torch has it, work on tensors that ``holders`` reference; undone by ``patches``."""
    function = getattr(torch.utils, "swap_tensors", None)
    if function is not None:
        use = object()
        patches.defer(_end_use, use)
        if not _uses:
            _patches.redirect(function, _released)
        _uses.add(use)


def _end_use(use):
    _uses.discard(use)
    if not _uses:
        _patches.undo()


def _released(swap_tensors, first, second):
    restores = [holder.release(tensor) for tensor in (first, second) for holder in list(holders)]
    try:
        return swap_tensors(first, second)
    finally:
        for restore in restores:
            if restore is not None:
                restore()
