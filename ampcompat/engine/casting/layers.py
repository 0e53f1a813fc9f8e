"""What layers of torch need besides casts of the arguments of their functions."""

import functools

import torch
from torch.nn.modules import rnn

from . import torch_compile


def accept_any_floating_input(is_exempt, patches):
    """Make recurrent layers accept inputs of any floating dtype unless ``is_exempt(args, kwargs)``.

    A layer compares its input's dtype with its weights' before any function of the op table runs, and would refuse a
    half input, which is normal when other layers are cast.
    """
    original = rnn.RNNBase.check_input

    @functools.wraps(original)
    def check_input(self, input, *args, **kwargs):
        if not torch_compile.is_compiling() and not is_exempt((input,), kwargs):
            input = _with_dtype_of(input, self)
        return original(self, input, *args, **kwargs)

    patches.set(rnn.RNNBase, "check_input", check_input)


def _with_dtype_of(input, module):
    """Return something with the input's shape and the weights' dtype: all that the check reads."""
    weight = next(module.parameters(), None)
    if weight is None or not input.is_floating_point() or input.dtype is weight.dtype:
        return input
    return torch.empty((), dtype=weight.dtype, device=input.device).expand(input.shape)


def reread_recurrent_kernels(patches):
    """Make ``nn.RNN`` use the wrapped kernels where it reads them from a dict made at import (torch < 1.8 or so)."""
    kernels = getattr(rnn, "_rnn_impls", None)
    if isinstance(kernels, dict):
        current = {mode: getattr(rnn._VF, mode.lower(), kernel) for mode, kernel in kernels.items()}
        patches.set(rnn, "_rnn_impls", current)


def turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and similar layers from calling fused kernels without rows (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        patches.defer(mha.set_fastpath_enabled, True)
        mha.set_fastpath_enabled(False)
