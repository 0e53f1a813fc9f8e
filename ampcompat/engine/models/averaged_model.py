"""``torch.optim.swa_utils.AveragedModel`` of a model with half weights: a float32 average takes in float32 values.

torch averages lists of tensors of one dtype, so that a copy made before ``amp.initialize`` could not take in the half
weights of the model. It gets the masters' values, and float32 copies of weights that have none.
"""

import functools
import sys

import torch

_HALF = (torch.float16, torch.bfloat16)

#: The attribute of the method in place of ``update_parameters``.
_MARK = "_amp_widens"


def patch(patches):
    """Replace ``AveragedModel.update_parameters``, once, until ``patches`` is undone, if torch has it."""
    averaged = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
    if averaged is not None and not hasattr(averaged.update_parameters, _MARK):
        patches.set(averaged, "update_parameters", _widening(averaged.update_parameters))


def _widening(update):
    @functools.wraps(update)
    def update_parameters(average, model):
        source = model
        if isinstance(model, torch.nn.Module) and _is_narrower(average, model):
            source = _Float32Values(average, model)
        return update(average, source)

    vars(update_parameters)[_MARK] = True
    return update_parameters


def _is_narrower(average, model):
    pairs = zip(average.parameters(), model.parameters())
    return any(one.dtype is torch.float32 and other.dtype in _HALF for one, other in pairs)


class _Float32Values:
    """What ``update_parameters`` reads of a model, as its average can take it in.

    Args:
        average: the ``AveragedModel``.
        model: the model; its state dict has the masters' values.
    """

    def __init__(self, average, model):
        state = model.state_dict()
        self._params = self._values(average.module.parameters(), model.named_parameters(), state)
        self._buffers = self._values(average.module.buffers(), model.named_buffers(), state)

    @staticmethod
    def _values(averaged, named, state):
        found = []
        for one, (name, value) in zip(averaged, named):
            if one.dtype is torch.float32 and value.dtype in _HALF:
                value = state[name].float() if name in state else value.detach().float()
            found.append(value)
        return found

    def parameters(self):
        """Yield the params' values."""
        return iter(self._params)

    def buffers(self):
        """Yield the buffers' values."""
        return iter(self._buffers)
