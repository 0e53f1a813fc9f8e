"""MLP and the dense layers against float64 loops written by hand; Apex's names for params; every level."""

import math

import pytest
import torch
from helpers.copies import saved_and_loaded
from helpers.half_kernels import dtype_params

from ampcompat.apex.mlp import MLP, FusedDense, FusedDenseGeluDense, MlpFunction
from ampcompat.errors import AmpTypeError, AmpValueError

each_dtype = pytest.mark.parametrize("dtype", dtype_params(torch.float64, torch.float32, torch.bfloat16, torch.float16))


class Layers:
    """Linear layers in float64 with a function of one number after each, and their gradients."""

    def __init__(self, x, weights, biases, function, slope, last=True):
        self.inputs, self.slopes, self.weights = [], [], [weight.detach().double() for weight in weights]
        x = x.detach().double()
        for index, weight in enumerate(self.weights):
            self.inputs.append(x)
            x = x @ weight.t() + (biases[index].detach().double() if biases else 0.0)
            acts = last or index + 1 < len(weights)
            self.slopes.append(elementwise(slope, x) if acts else torch.ones_like(x))
            x = elementwise(function, x) if acts else x
        self.output = x

    def grads(self, grad):
        """Return the gradients of the input, the weights and the biases, where ``grad`` is that of the output."""
        grad, weights, biases = grad.double(), [], []
        for x, slope, weight in zip(self.inputs[::-1], self.slopes[::-1], self.weights[::-1]):
            grad = grad * slope
            weights.insert(0, grad.t() @ x)
            biases.insert(0, grad.sum(0))
            grad = grad @ weight
        return [grad] + weights + biases


def elementwise(function, tensor):
    return torch.tensor([[function(value) for value in row] for row in tensor.tolist()], dtype=torch.float64)


def gelu(x):
    return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x, step=1e-6):
    return (gelu(x + step) - gelu(x - step)) / (2 * step)


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


ACTIVATIONS = {
    "none": (lambda x: x, lambda x: 1.0),
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * (1.0 - sigmoid(x))),
}


def check(module, x, expected, weights, biases):
    output = module(x)
    grad = torch.randn(output.shape).to(x.dtype)
    output.backward(grad)
    assert output.dtype is x.dtype
    found = [x.grad] + [param.grad for param in weights + biases]
    for tensor, value in zip([output] + found, [expected.output] + expected.grads(grad)):
        error = (tensor.detach().double() - value).abs().max().item()
        assert error <= max(64 * torch.finfo(x.dtype).eps, 1e-9) * (1.0 + value.abs().max().item())


@each_dtype
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_an_mlp_and_its_gradients(activation, bias, dtype):
    torch.manual_seed(4)
    module = MLP([5, 8, 6, 2], bias=bias, activation=activation).to(dtype)
    x = torch.randn(3, 5).to(dtype).requires_grad_()
    assert len(module.weights) == 3 and len(module.biases) == (3 if bias else 0)
    expected = Layers(x, module.weights, module.biases, *ACTIVATIONS[activation])
    check(module, x, expected, module.weights, module.biases)
    index = list(ACTIVATIONS).index(activation)
    params = module.weights + module.biases
    assert torch.equal(MlpFunction.apply(int(bias), index, x, *params), module(x))


@each_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_and_its_gradients(bias, dtype):
    module = FusedDense(5, 4, bias=bias).to(dtype)
    x = torch.randn(3, 5).to(dtype).requires_grad_()
    biases = [module.bias] if bias else []
    check(module, x, Layers(x, [module.weight], biases, *ACTIVATIONS["none"]), [module.weight], biases)


@each_dtype
def test_two_dense_layers_with_a_gelu_between_and_their_gradients(dtype):
    module = FusedDenseGeluDense(5, 7, 4).to(dtype)
    x = (torch.randn(3, 5) * 3).to(dtype).requires_grad_()
    weights, biases = [module.weight1, module.weight2], [module.bias1, module.bias2]
    check(module, x, Layers(x, weights, biases, gelu, gelu_slope, last=False), weights, biases)


def test_params_have_the_names_and_shapes_of_apex():
    def shapes(module):
        return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}

    assert shapes(MLP([3, 4, 2])) == {"weight_0": (4, 3), "weight_1": (2, 4), "bias_0": (4,), "bias_1": (2,)}
    assert shapes(MLP([3, 4], bias=False)) == {"weight_0": (4, 3)}
    assert shapes(FusedDense(3, 4)) == {"weight": (4, 3), "bias": (4,)}
    assert shapes(FusedDenseGeluDense(3, 4, 2)) == {
        "weight1": (4, 3), "bias1": (4,), "weight2": (2, 4), "bias2": (2,)
    }  # fmt: skip


def test_params_are_drawn_as_wide_as_published():
    torch.manual_seed(0)
    module = MLP([300, 500])
    assert abs(module.weight_0.std().item() * math.sqrt(800 / 2) - 1) < 0.02
    assert abs(module.bias_0.std().item() * math.sqrt(500) - 1) < 0.15
    weight = module.weight_0.detach().clone()
    module.reset_parameters()
    assert not torch.equal(weight, module.weight_0)
    assert "[300, 500], Bias=1, activation=1" in repr(module)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(AmpTypeError, match="none, relu, sigmoid"):
        MLP([2, 2], activation="tanh")
    with pytest.raises(AmpValueError, match="mlp_sizes"):
        MLP([2])
    with pytest.raises(AmpValueError, match="bias must be True"):
        FusedDenseGeluDense(2, 3, 2, bias=False)


@pytest.mark.parametrize(
    "make", [lambda: MLP([6, 8, 3]), lambda: FusedDense(6, 8), lambda: FusedDenseGeluDense(6, 8, 3)]
)
def test_its_state_loads_into_another(make):
    module, other = make(), make()
    other.load_state_dict(saved_and_loaded(module.state_dict()))
    x = torch.randn(2, 6)
    assert torch.equal(other(x), module(x))
