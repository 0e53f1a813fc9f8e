"""``MLP``: linear layers with an activation after each of them, including the last.

The params are named ``weight_0``, ``bias_0``, ``weight_1`` …, as in Apex's checkpoints.
"""

import math

import torch

from ...errors import AmpTypeError, AmpValueError

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
    """Linear layers, each with the activation after it.

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
