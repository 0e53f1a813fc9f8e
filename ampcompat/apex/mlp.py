"""Linear layers under Apex's names: ``MLP``, ``FusedDense`` and ``FusedDenseGeluDense``.

Apex ran a whole stack in half under its casts; here each layer follows the op table, with the same result dtype.
"""

import math

import torch

from ..errors import AmpTypeError, AmpValueError
from ..support.torch_compat import features

#: The activations by Apex's numbers.
_ACTIVATIONS = ("none", "relu", "sigmoid")
#: torch's functions are looked up at each call, because the patched backend replaces them.
_FUNCTIONS = (lambda tensor: tensor, lambda tensor: torch.relu(tensor), lambda tensor: torch.sigmoid(tensor))


def mlp_function(bias, activation, input, *params):
    """Return the output of linear layers for ``input``.

    Args:
        bias: whether there are biases.
        activation: 0 for none, 1 for relu, 2 for sigmoid.
        input: ``[*, features]``.
        *params: the weights, then, if ``bias``, as many biases.
    """
    layers = len(params) // 2 if bias else len(params)
    for index in range(layers):
        layer_bias = params[layers + index] if bias else None
        input = _FUNCTIONS[activation](torch.nn.functional.linear(input, params[index], layer_bias))
    return input


class MlpFunction:
    """An autograd function in Apex; scripts call ``apply``."""

    apply = staticmethod(mlp_function)


class MLP(torch.nn.Module):
    """Linear layers, each with the activation after it, including the last.

    The params are named ``weight_0``, ``bias_0``, ``weight_1`` …, as in Apex's checkpoints.

    Args:
        mlp_sizes: the number of features of the input and of each layer: ``[1024, 512, 10]`` has two layers.
        bias: whether the layers have biases.
        activation: ``"none"``, ``"relu"`` or ``"sigmoid"``.

    Raises:
        AmpTypeError: ``activation`` is not one of these.
        AmpValueError: ``mlp_sizes`` describes no layer.
    """

    def __init__(self, mlp_sizes, bias=True, activation="relu"):
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise AmpTypeError("activation must be one of {}, not {!r}.".format(", ".join(_ACTIVATIONS), activation))
        if len(mlp_sizes) < 2:
            raise AmpValueError(f"mlp_sizes needs the sizes of the input and of a layer, not {mlp_sizes!r}.")
        self.mlp_sizes = list(mlp_sizes)
        self.num_layers = len(mlp_sizes) - 1
        self.bias = int(bool(bias))
        self.activation = _ACTIVATIONS.index(activation)
        for index in range(self.num_layers):
            weight = torch.empty(mlp_sizes[index + 1], mlp_sizes[index])
            self.register_parameter(f"weight_{index}", torch.nn.Parameter(weight))
            if bias:
                vector = torch.empty(mlp_sizes[index + 1])
                self.register_parameter(f"bias_{index}", torch.nn.Parameter(vector))
        self.reset_parameters()

    @property
    def weights(self):
        """The weights of the layers."""
        return [getattr(self, f"weight_{index}") for index in range(self.num_layers)]

    @property
    def biases(self):
        """The biases of the layers; an empty list if they have none."""
        return [getattr(self, f"bias_{index}") for index in range(self.num_layers * self.bias)]

    def reset_parameters(self):
        """Initialize the params: weights by both of their sizes (Glorot and Bengio 2010), biases by their size."""
        for weight in self.weights:
            torch.nn.init.normal_(weight, 0.0, math.sqrt(2.0 / float(sum(weight.shape))))
        for bias in self.biases:
            torch.nn.init.normal_(bias, 0.0, math.sqrt(1.0 / float(bias.shape[0])))

    def forward(self, input):
        """Return the output of the last layer."""
        return mlp_function(self.bias, self.activation, input, *(self.weights + self.biases))

    def extra_repr(self):
        """Return the text between the parentheses of ``repr``."""
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"


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
    """Two linear layers, which must have biases, with a GELU between them.

    The GELU is the tanh approximation, as in Apex, so that weights trained with Apex give the same outputs. Params are
    initialized as in ``torch.nn.Linear``; Apex left them uninitialized.
    """

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
