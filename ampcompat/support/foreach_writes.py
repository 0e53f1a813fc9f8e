"""Version counters on devices where ``torch._foreach_*_`` moves none: torch_xla's, for one.

What a script has written to a weight or a gradient is known by its version counter. So where foreach functions move no
counter, these functions are replaced by ones that do.
"""

import functools
import weakref

import torch

from .torch_compat import features

_made = weakref.WeakSet()  # functions that ``_counting`` has returned


def count(tensors, patches):
    """Let foreach functions in place move version counters on the devices of ``tensors``; undone by ``patches``.

    Old torch cannot move a counter alone; its foreach functions, which torch 1.7 has on the CPU, are left as they are.
    """
    if not hasattr(getattr(torch.autograd, "graph", None), "increment_version"):
        return
    if not all([features.foreach_moves_versions(each) for each in {tensor.device.type for tensor in tensors}]):
        for name in dir(torch):
            if name.startswith("_foreach_") and name.endswith("_"):
                patches.set(torch, name, _counting(getattr(torch, name)))


def _counting(function):
    if function in _made:
        return function

    @functools.wraps(function)
    def counting(self, *args, **kwargs):
        before = [tensor._version for tensor in self]
        result = function(self, *args, **kwargs)
        for tensor, version in zip(self, before):
            if tensor._version == version:
                torch.autograd.graph.increment_version(tensor)  # takes several only since torch 2.5
        return result

    _made.add(counting)
    return counting
