"""Layer norm and RMS norm as modules. As in Apex, they are not subclasses of ``torch.nn.LayerNorm``."""

import numbers
import warnings

import torch

from ...errors import AmpValueError
from . import norm_functions


class _FusedNorm(torch.nn.Module):
    """Base class of the norms: a weight of the normalized shape, and an optional bias."""

    _has_bias = False

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False):
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = torch.Size(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in ("weight", "bias") if self._has_bias else ("weight",):
            param = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, param)
        self.reset_parameters()

    def reset_parameters(self):
        """Set the weight to 1 and the bias, if there is one, to 0."""
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if self._has_bias:
                torch.nn.init.zeros_(self.bias)

    def extra_repr(self):
        """Return the text between the parentheses of ``repr``."""
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_FusedNorm):
    """Layer norm with the result in the input's dtype.

    Args:
        normalized_shape: the last dimensions of the input, as an int or a sequence of them.
        eps: added to the variance.
        elementwise_affine: whether there are a weight and a bias.
        memory_efficient: accepted, no effect; torch decides what is saved for backward.
    """

    __constants__ = ["normalized_shape", "eps"]
    _has_bias = True
    _norm = staticmethod(norm_functions.fused_layer_norm_affine)

    def forward(self, input):
        """Return the norm of ``input``."""
        shape, weight, bias = self.normalized_shape, self.weight, self.bias
        if torch.jit.is_scripting():  # TorchScript supports torch's own functions only, as in Apex
            normed = torch.nn.functional.layer_norm(input, shape, weight, bias, self.eps)
        else:
            normed = self._norm(input, weight, bias, shape, self.eps)
        return normed


class FusedRMSNorm(_FusedNorm):
    """RMS norm with the result in the input's dtype; arguments as for ``FusedLayerNorm``, but without bias."""

    _norm = staticmethod(norm_functions.fused_rms_norm_affine)

    def forward(self, input):
        """Return the norm of ``input``."""
        return self._norm(input, self.weight, self.normalized_shape, self.eps)


class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm with the result in the weights' dtype: with float32 weights, a half input gives a float32 result."""

    _norm = staticmethod(norm_functions.mixed_dtype_fused_layer_norm_affine)

    def __init__(self, normalized_shape, eps=1e-5, memory_efficient=False, **keywords):
        _check_affine(type(self).__name__, keywords)
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm with the result in the weight's dtype: with a float32 weight, a half input gives a float32 result."""

    _norm = staticmethod(norm_functions.mixed_dtype_fused_rms_norm_affine)

    def __init__(self, normalized_shape, eps=1e-5, memory_efficient=False, **keywords):
        _check_affine(type(self).__name__, keywords)
        super().__init__(normalized_shape, eps, True, memory_efficient)


def _check_affine(name, keywords):
    """Accept ``elementwise_affine`` as Apex does: no effect if True, an error otherwise.

    Raises:
        AmpValueError: there would be no weight to determine the dtype.
        TypeError: there is another keyword.
    """
    affine = keywords.pop("elementwise_affine", None)
    if keywords:
        raise TypeError(f"{name} got an unexpected keyword argument {sorted(keywords)[0]!r}")
    if affine is None:
        return
    if not affine:
        raise AmpValueError(f"{name} returns the dtype of its weight, so elementwise_affine must be True.")
    warnings.warn(f"{name} always has a weight: leave elementwise_affine out.", stacklevel=3)
