"""``FusedDense`` and ``FusedDenseGeluDense``: a linear layer, and two with a GELU between them.

The GELU is the tanh approximation, as in Apex, so that weights trained with Apex give the same outputs. Params are
initialized as in ``torch.nn.Linear``; Apex left them uninitialized.
"""

import math

import torch

from ...errors import AmpValueError
from ...support.torch_compat import features


def fused_dense_function(input, weight, bias):
    """Return ``input @ weight.T + bias``."""
    return torch.nn.functional.linear(input, weight, bias)


def dense_no_bias_function(input, weight):
    """Return ``input @ weight.T``."""
    return torch.nn.functional.linear(input, weight)


def fused_dense_gelu_dense_function(input, weight1, bias1, weight2, bias2):
    """Return a linear layer of the GELU of a linear layer of ``input``."""
    hidden = torch.nn.functional.linear(input, weight1, bias1)
    return torch.nn.functional.linear(_gelu(hidden), weight2, bias2)


def _gelu(tensor):
    """Return ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` (Hendrycks and Gimpel 2016)."""
    if features.has_tanh_gelu():
        return torch.nn.functional.gelu(tensor, approximate="tanh")
    inner = math.sqrt(2.0 / math.pi) * (tensor + 0.044715 * (tensor * tensor * tensor))
    return 0.5 * tensor * (1.0 + torch.tanh(inner))


class FusedDense(torch.nn.Linear):
    """A linear layer; arguments as for ``torch.nn.Linear``."""


class FusedDenseGeluDense(torch.nn.Module):
    """Two linear layers, which must have biases, with a GELU between them."""

    def __init__(self, in_features, intermediate_features, out_features, bias=True):
        super().__init__()
        if not bias:
            raise AmpValueError("FusedDenseGeluDense always has biases: bias must be True.")
        self.in_features = in_features
        self.intermediate_features = intermediate_features
        self.out_features = out_features
        first = torch.nn.Linear(in_features, intermediate_features)
        second = torch.nn.Linear(intermediate_features, out_features)
        self.weight1, self.bias1 = first.weight, first.bias
        self.weight2, self.bias2 = second.weight, second.bias

    def forward(self, input):
        """Return the second layer's output."""
        return fused_dense_gelu_dense_function(input, self.weight1, self.bias1, self.weight2, self.bias2)

    def extra_repr(self):
        """Return the text between the parentheses of ``repr``."""
        return (
            f"in_features={self.in_features}, intermediate_features={self.intermediate_features}, "
            f"out_features={self.out_features}"
        )
