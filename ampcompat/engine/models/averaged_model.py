"""``torch.optim.swa_utils.AveragedModel`` of a model with half weights: a float32 average takes in float32 values.

torch averages lists of tensors of one dtype, so that a copy made before ``amp.initialize`` could not take in the half
weights of the model. It gets the masters' values, and float32 copies of weights that have none.
"""

import functools
import sys
from types import SimpleNamespace

import torch

_HALF = (torch.float16, torch.bfloat16)


def patch(patches):
    """Replace ``AveragedModel.update_parameters``, once, until ``patches`` is undone, if torch has it."""
    averaged = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
    if averaged is not None and not hasattr(averaged.update_parameters, "amp_widens"):
        patches.set(averaged, "update_parameters", _widening(averaged.update_parameters))


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
