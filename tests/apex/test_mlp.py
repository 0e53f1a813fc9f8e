"""MLP and the dense layers against the same layers in float64; Apex's names for params."""

import math

import pytest
import torch
from helpers.half_kernels import dtype_params

from ampcompat.apex.mlp import MLP, FusedDense, FusedDenseGeluDense, MlpFunction
from ampcompat.errors import AmpTypeError, AmpValueError

each_dtype = pytest.mark.parametrize("dtype", dtype_params(torch.float64, torch.float32, torch.bfloat16, torch.float16))


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"none": lambda x: x, "relu": lambda x: x.clamp(min=0.0), "sigmoid": lambda x: 1.0 / (1.0 + (-x).exp())}


def check(module, weights, biases, functions, dtype):
    """Compare output and gradients with layers in float64, one function after each; return the input."""
    x = torch.randn(3, 5).to(dtype).requires_grad_()
    given = [x] + weights + biases
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = wide[0]
    for index, function in enumerate(functions):
        expected = expected @ wide[1 + index].t() + (wide[1 + len(weights) + index] if biases else 0.0)
        expected = function(expected)
    output = module(x)
    grad = torch.randn(output.shape).to(dtype)
    output.backward(grad)
    expected.backward(grad.double())
    assert output.dtype is dtype
    pairs = [(output, expected)] + [(tensor.grad, right.grad) for tensor, right in zip(given, wide)]
    for found, right in pairs:
        error = (found.detach().double() - right.detach()).abs().max().item()
        assert error <= max(64 * torch.finfo(dtype).eps, 1e-9) * (1.0 + right.abs().max().item())
    return x


@each_dtype
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_an_mlp_and_its_gradients(activation, bias, dtype):
    torch.manual_seed(4)
    module = MLP([5, 8, 6, 2], bias=bias, activation=activation).to(dtype)
    assert len(module.weights) == 3 and len(module.biases) == (3 if bias else 0)
    x = check(module, module.weights, module.biases, [ACTIVATIONS[activation]] * 3, dtype)
    index = list(ACTIVATIONS).index(activation)
    params = module.weights + module.biases
    assert torch.equal(MlpFunction.apply(int(bias), index, x, *params), module(x))


@each_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_and_its_gradients(bias, dtype):
    module = FusedDense(5, 4, bias=bias).to(dtype)
    check(module, [module.weight], [module.bias] if bias else [], [ACTIVATIONS["none"]], dtype)


@each_dtype
def test_two_dense_layers_with_a_gelu_between_and_their_gradients(dtype):
    module = FusedDenseGeluDense(5, 7, 4).to(dtype)
    weights, biases = [module.weight1, module.weight2], [module.bias1, module.bias2]
    check(module, weights, biases, [gelu, ACTIVATIONS["none"]], dtype)


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
