"""Half by float32: the values are those of explicit rounding, autograd keeps half, the setting decides."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from helpers.precision import HIGH, LOW, PAIR
from opened import each_setting, opened
from torch.nn.modules import rnn

from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.errors import AmpError, AmpValueError
from ampcompat.support.torch_compat import features

keeps_low = pytest.mark.skipif(
    not features.has_nested_saved_tensor_hooks(), reason="this torch cannot tell autograd what to keep"
)
needs_attention = pytest.mark.skipif(
    not hasattr(F, "scaled_dot_product_attention"), reason="this torch has no fused attention"
)

SHAPES = {
    "matmul": (torch.matmul, [(2, 5, 7), (7, 3)]),
    "mv": (torch.mv, [(5, 7), (7,)]),
    "linear": (F.linear, [(4, 6), (3, 6), (3,)]),
    "bmm": (torch.bmm, [(2, 5, 7), (2, 7, 3)]),
    "addmm": (torch.addmm, [(5, 3), (5, 7), (7, 3)]),
    "baddbmm": (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 5, 7), (2, 3, 7)]),
    "conv1d": (F.conv1d, [(2, 3, 9), (4, 3, 3), (4,)]),
    "conv2d": (F.conv2d, [(2, 3, 7, 6), (4, 3, 3, 2), (4,)]),
    "conv3d": (F.conv3d, [(1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (3,)]),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 3, 9), (3, 4, 3), (4,)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 3, 5, 6), (3, 4, 3, 2), (4,)]),
    "conv_transpose3d": (F.conv_transpose3d, [(1, 2, 4, 3, 4), (2, 3, 2, 3, 2), (3,)]),
    "attention": (getattr(F, "scaled_dot_product_attention", None), [(2, 4, 5, 8)] * 3),
}
OPERATIONS = [pytest.param(name, marks=needs_attention) if name == "attention" else name for name in SHAPES]


def operands(shapes):
    return [torch.randn(shape).to(LOW).requires_grad_() for shape in shapes]


def in_double(tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def computed(function, tensors):
    call = emulated_half_arithmetic.EmulatedCall(*PAIR)
    return call.run(function, [call.widened(tensor) for tensor in tensors], {})


def within_one_ulp(found, reference):
    """Whether low values are within a unit in their last place of a float64 reference, but for cancellation in HIGH.

    Half a unit is the rounding; the additions in HIGH may move a value between two to the other side.
    """
    fraction = torch.abs(reference.detach()).clamp(min=torch.finfo(LOW).tiny)
    unit = 2.0 ** torch.floor(torch.log2(fraction)) * torch.finfo(LOW).eps
    cancelled = 16 * torch.finfo(HIGH).eps * float(torch.abs(reference.detach()).max())
    return bool((torch.abs(found.detach().double() - reference.detach()) <= unit + cancelled).all())


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_product_and_its_gradients_are_those_of_float64_rounded_once(name):
    function, shapes = SHAPES[name]
    tensors = operands(shapes)
    doubles = in_double(tensors)
    found, reference = computed(function, tensors), function(*doubles)
    assert found.dtype is LOW
    assert within_one_ulp(found, reference)
    upstream = torch.randn(found.shape).to(LOW)
    found.backward(upstream)
    reference.backward(upstream.double())
    for tensor, double in zip(tensors, doubles):
        assert tensor.grad.dtype is LOW
        assert within_one_ulp(tensor.grad, double.grad)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_and_its_gradients_are_those_of_float64_rounded_once(kind):
    layer = getattr(torch.nn, kind)(6, 5, num_layers=2)
    reference = getattr(torch.nn, kind)(6, 5, num_layers=2).double()
    names = [name for name, _ in layer.named_parameters()]
    weights = [parameter.detach().to(LOW).requires_grad_() for parameter in layer.parameters()]
    for target, weight in zip(reference.parameters(), weights):
        target.data.copy_(weight.data)
    series = torch.randn(4, 3, 6).to(LOW)
    call = emulated_half_arithmetic.EmulatedCall(*PAIR)
    function = getattr(rnn._VF, {"RNN": "rnn_tanh"}.get(kind, kind.lower()))
    state = torch.zeros(2, 3, 5, dtype=HIGH)
    wide = [call.widened(weight) for weight in weights]
    states = (state, state) if kind == "LSTM" else state
    found = call.run(function, (call.widened(series), states, wide, True, 2, 0.0, True, False, False), {})[0]
    expected = reference(series.double())[0]
    assert within_one_ulp(found, expected)
    upstream = torch.randn(found.shape).to(LOW)
    found.backward(upstream)
    expected.backward(upstream.double())
    doubles = dict(reference.named_parameters())
    for name, weight in zip(names, weights):
        assert within_one_ulp(weight.grad, doubles[name].grad)


def saved_by(function, tensors):
    """Return the tensors that autograd keeps of one call, as hooks of a user see them, and the result."""
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = computed(function, tensors)
    return saved, result


@keeps_low
@pytest.mark.parametrize("name", ["matmul", "linear", "bmm", "conv1d", "conv2d"])
def test_what_autograd_saves_is_no_larger_than_the_low_inputs(name):
    function, shapes = SHAPES[name]
    tensors = operands(shapes)
    saved, result = saved_by(function, tensors)
    assert {tensor.dtype for tensor in saved} == {LOW}
    assert sum(t.numel() * t.element_size() for t in saved) <= sum(t.numel() * t.element_size() for t in tensors)
    result.sum().backward()
    assert [tensor.grad.shape for tensor in tensors] == [tensor.shape for tensor in tensors]


@keeps_low
def test_inputs_that_autograd_did_not_save_are_let_go():
    x, weight = operands([(2, 4), (3, 4)])
    summand = torch.ones(2, 3, dtype=LOW)  # adding it needs no more than its shape in backward
    memory = weakref.ref(summand.untyped_storage())
    result = computed(lambda *each: F.linear(*each[:2]) + each[2], [x, weight, summand])
    del summand
    assert memory() is None
    result.sum().backward()


@keeps_low
def test_an_input_changed_after_its_use_is_an_error_in_backward():
    x, weight = operands([(2, 4), (3, 4)])
    result = computed(F.linear, [x, weight])
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(AmpError, match="modified in place"):
        result.sum().backward()


@keeps_low
def test_a_gradient_of_a_gradient_flows_through_kept_tensors():
    x, weight = operands([(2, 4), (3, 4)])
    (slope,) = torch.autograd.grad(computed(F.linear, [x, weight]).pow(2).sum(), x, create_graph=True)
    slope.sum().backward()
    double, heavy = in_double([x, weight])
    (reference,) = torch.autograd.grad(F.linear(double, heavy).pow(2).sum(), double, create_graph=True)
    reference.sum().backward()
    assert torch.allclose(weight.grad.double(), heavy.grad, rtol=8 * torch.finfo(LOW).eps, atol=0.05)


def test_channels_last_and_transposed_inputs_give_the_same_values():
    x, weight = torch.randn(2, 3, 5, 5).to(LOW), torch.randn(4, 3, 3, 3).to(LOW)
    plain = computed(F.conv2d, [x, weight])
    strided = computed(F.conv2d, [x.contiguous(memory_format=torch.channels_last), weight.requires_grad_()])
    assert torch.allclose(plain.float(), strided.float(), rtol=4 * torch.finfo(LOW).eps, atol=1e-3)
    strided.float().sum().backward()
    a, b = torch.randn(6, 5).to(LOW).requires_grad_(), torch.randn(6, 4).to(LOW).requires_grad_()
    computed(torch.matmul, [a.t(), b]).float().sum().backward()
    assert within_one_ulp(a.grad, b.detach().double().sum(1, keepdim=True).expand(6, 5))


def test_an_unknown_setting_is_an_error_that_names_the_known_ones(monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "yes")
    with pytest.raises(AmpValueError, match="auto, on, off"):
        emulated_half_arithmetic.is_wanted(LOW)


def test_ranks_that_differ_are_told_apart_in_one_sentence():
    sentence = emulated_half_arithmetic.difference(torch.bfloat16, [1, 0, 1])
    assert "bfloat16" in sentence and "emulated" in sentence and "AMPCOMPAT_HALF_MATH=on, or off" in sentence
    assert "on rank 0, 2," in sentence and "kernels on rank 1." in sentence


@each_setting
def test_half_tensors_are_padded_and_unpooled_also_by_torch_without_half_kernels(setting):
    x = torch.tensor([[[1.0, 2.0, 3.0]]]).to(setting.low)
    with opened(setting):
        reflected = F.pad(x, (1, 1), mode="reflect")
        constant = F.pad(x, (1, 1), value=-65504.0)
        unpooled = F.max_unpool1d(x, torch.tensor([[[1, 2, 5]]]), 2)
    assert {each.dtype for each in (reflected, constant, unpooled)} == {setting.low}
    assert reflected.tolist() == [[[2.0, 1.0, 2.0, 3.0, 2.0]]]
    assert constant[0, 0, 1:4].tolist() == [1.0, 2.0, 3.0]
    assert unpooled.tolist() == [[[0.0, 1.0, 2.0, 0.0, 0.0, 3.0]]]
