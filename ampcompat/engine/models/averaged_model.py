"""``torch.optim.swa_utils.AveragedModel`` of a model with half weights: a float32 average takes in float32 values.

An average adds up small changes, which half weights would lose: it has float32 weights, whether it was made before
``amp.initialize`` or after it, and takes in the masters' values, and float32 copies of weights that have none. One that
is made after it runs in float32, without the conversions of the model's ``forward``.
"""

import functools
import sys
from types import SimpleNamespace

import torch

from . import forward_conversion

_HALF = (torch.float16, torch.bfloat16)


def patch(patches):
    """Replace methods of ``AveragedModel``, once, until ``patches`` is undone, if torch has it."""
    averaged = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
    if averaged is not None and not hasattr(averaged.update_parameters, "amp_widens"):
        patches.wrap(averaged, "__init__", _make_wide)
        patches.set(averaged, "update_parameters", _widening(averaged.update_parameters))


def _make_wide(init, average, model, *args, **kwargs):
    init(average, model, *args, **kwargs)
    state = model.state_dict()  # with the masters' values
    named = list(average.module.named_parameters()) + list(average.module.named_buffers())
    half = [(name, tensor) for name, tensor in named if tensor.dtype in _HALF and name in state]
    for name, tensor in half:
        tensor.grad = None
        tensor.data = state[name].detach().to(tensor.device, torch.float32, copy=True)
    for module in average.module.modules() if half else ():
        forward_conversion.unmark(module)


def _widening(update):
    @functools.wraps(update)
    def update_parameters(average, model):
        is_model = isinstance(model, torch.nn.Module)
        is_narrower = is_model and any(map(_takes_in, average.parameters(), model.parameters()))
        return update(average, _widened(average.module, model) if is_narrower else model)

    update_parameters.amp_widens = True
    return update_parameters


def _takes_in(averaged, value):
    return averaged.dtype is torch.float32 and value.dtype in _HALF


def _widened(average, model):
    """Return what ``update_parameters`` reads of a model, as its average can take it in."""
    state = model.state_dict()  # with the masters' values

    def values(averaged, named):
        return [
            state.get(name, value.detach()).float() if _takes_in(one, value) else value
            for one, (name, value) in zip(averaged, named)
        ]

    params = values(average.parameters(), model.named_parameters())
    buffers = values(average.buffers(), model.named_buffers())
    return SimpleNamespace(parameters=lambda: iter(params), buffers=lambda: iter(buffers))
