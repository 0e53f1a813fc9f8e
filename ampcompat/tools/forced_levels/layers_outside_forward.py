"""Layers of prepared models that the script calls outside of ``forward``, as in ``model.decode(noise)``.

At O2, O3 and O5 a model's ``forward`` casts its inputs to the dtype of the half weights; its other methods do not. A
layer that gets a float32 input casts it and returns float32. Within ``forward``, inputs are already half.
"""

import torch

from ...engine.models import forward_conversion
from ...support.nested import cast_floating

_HALF = (torch.float16, torch.bfloat16)
_CONVOLUTIONS = torch.nn.modules.conv._ConvNd
_RECURRENT = (torch.nn.RNNBase, torch.nn.RNNCellBase)
_OTHERS = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.MultiheadAttention, torch.nn.LayerNorm, torch.nn.GroupNorm)

#: Layers whose kernels refuse float32 inputs if the weights are half.
_LAYERS = (_CONVOLUTIONS,) + _RECURRENT + _OTHERS


class LayerConversion(forward_conversion.ForwardConversion):
    """The conversions around layers of a class that are called with float32 inputs.

    Args:
        owner: the class.
        is_paused: a function that returns whether the script currently computes in float32, or None.
        token: as in ``ForwardConversion``.
    """

    def __init__(self, owner, is_paused=None, token=None):
        super().__init__(owner, token=token)
        self._is_paused = is_paused

    def run(self, forward, model, args, kwargs):
        """Call ``forward(model, *args, **kwargs)``, converted if the input is float32 and the weights are half."""
        dtype = _weight_dtype(model) if _is_float32(args) else None
        if dtype not in _HALF or (self._is_paused is not None and self._is_paused()):
            return forward(model, *args, **kwargs)
        args, kwargs = cast_floating(args, dtype), cast_floating(kwargs, dtype)
        return cast_floating(forward(model, *args, **kwargs), torch.float32)

    def __deepcopy__(self, memo):
        return LayerConversion(self.owner, self._is_paused)  # weights of copies stay half

    def __reduce__(self):
        return LayerConversion, (self.owner,)


def _is_float32(args):
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float32


def _weight_dtype(layer):
    """Return the dtype of a layer's weight; None if it has none."""
    weight = next(iter(layer.parameters(recurse=False)), None)
    weight = getattr(layer, "weight", None) if weight is None else weight  # a parametrized one
    return getattr(weight, "dtype", None)


def watch(model, session, is_paused):
    """Make the layers of a prepared model accept float32 inputs until the session is closed.

    Args:
        model: the module that was passed to ``amp.initialize``.
        session: the ``Session``.
        is_paused: a function that returns whether the script currently computes in float32.
    """
    shared = {}
    for layer in model.modules():
        if isinstance(layer, _LAYERS) and _weight_dtype(layer) in _HALF and not forward_conversion.is_marked(layer):
            owner = type(layer)
            if owner not in shared:
                shared[owner] = LayerConversion(owner, is_paused, session.forward_token)
            forward_conversion.mark(layer, shared[owner], session.patches)
