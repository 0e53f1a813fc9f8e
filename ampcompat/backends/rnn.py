"""What recurrent layers need beside the rows of the table.

Owns: the patches of ``torch.nn.modules.rnn``.
Must not touch: the recurrent kernels; ``torch._VF`` is rows of the table.
The surprise: an RNN checks its input's dtype against its float32 weights before any listed function runs, so a
low-precision input, which is the normal thing under casts, would be refused.
"""

import functools

import torch
from torch.nn.modules import rnn


def accept_any_floating_input(casts, patches):
    """Let recurrent layers take inputs of any floating dtype while casts are active."""
    original = rnn.RNNBase.check_input

    @functools.wraps(original)
    def check_input(self, input, *args, **kwargs):
        if not casts.inactive() and not casts.is_compiling():
            input = _looks_like(input, self)
        return original(self, input, *args, **kwargs)

    patches.set(rnn.RNNBase, "check_input", check_input)


def look_up_anew(patches):
    """Let ``nn.RNN`` find the wrapped kernels where it looks in a dictionary made at import (torch < 1.8 or so).

    Call it when the rows are in place.
    """
    kernels = getattr(rnn, "_rnn_impls", None)
    if isinstance(kernels, dict):
        current = {mode: getattr(rnn._VF, mode.lower(), kernel) for mode, kernel in kernels.items()}
        patches.set(rnn, "_rnn_impls", current)


def _looks_like(input, module):
    """Return something with the input's shape and the weights' dtype: all that the check looks at."""
    weight = next(module.parameters(), None)
    if weight is None or not input.is_floating_point() or input.dtype is weight.dtype:
        return input
    return torch.empty((), dtype=weight.dtype, device=input.device).expand(input.shape)
