"""Tensor subclasses and modes at every level: the table of docs/differences.md, next to float64 without amp.

DTensors are in tests/distributed/test_other_ways.py; torchao's tensors, and what torch's own compiler makes, in
tests/clients/libraries.
"""

import io

import pytest
import torch
import torch.nn.functional as F
from helpers import loops
from helpers.networks import REAL, initialize, session_of

from ampcompat import amp
from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import features

torch_func = pytest.importorskip("torch.func", reason="these came with torch 2")
if not features.is_version_within(oldest="2.5"):
    pytest.skip("torch before 2.5 lacks some of these", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

each_setting = pytest.mark.parametrize("setting", REAL)
#: One setting of each level.
each_level = pytest.mark.parametrize("setting", [each for each in REAL if each.values[0].backend != "patched"])
X, CLASSES = torch.linspace(-1, 1, 20).view(5, 4), torch.tensor([0, 1, 2, 1, 0])


class Net(torch.nn.Module):
    """Two layers with a norm between them."""

    def __init__(self):
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Attention(torch.nn.Module):
    """Self-attention with two heads, by the function that is given: nothing is said of its inputs' layout."""

    def __init__(self, attend):
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.attend, self.split, self.joined = attend, torch.nn.Linear(8, 48), torch.nn.Linear(16, 2)

    def forward(self, x):
        heads = [part.unflatten(-1, [2, 8]).transpose(1, 2) for part in self.split(x).chunk(3, -1)]
        return self.joined(self.attend(*heads).transpose(1, 2).flatten(-2))


def prepared(setting, model):
    """Return a model and an SGD optimizer at the setting's level."""
    return initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.5))


def exact(function, *args):
    """Return a function's result in float64, without amp."""
    with amp.disable_casts():
        return function(*args)


def assert_close(setting, found, expected):
    tolerance = 1e-5 if setting.level == "O0" else 16 * torch.finfo(setting.low).eps
    assert (found.double() - expected).abs().max() <= tolerance * max(expected.abs().max(), 1.0)


def train(model, optimizer, x=X):
    """Return the losses of three iterations; each of them must lower the loss."""
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(x).float(), CLASSES)
        loops.step(loss, optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[2]


# -- torch.func --------------------------------------------------------------------------------------------------------


def input_of(model):
    return X.double() if model.last.bias.dtype is torch.float64 else X


def of_params(model, params, x, classes):
    return F.cross_entropy(torch.func.functional_call(model, params, (x,)).float(), classes)


def gradient(model, params):
    return torch.func.grad(lambda params: of_params(model, params, input_of(model), CLASSES))(params)


def gradients_of_samples(model, params):
    def loss(params, x, label):
        return of_params(model, params, x.unsqueeze(0), label.unsqueeze(0))

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(params, input_of(model), CLASSES)
    return {name: each.double().mean(0) for name, each in found.items()}


def jacobian_times_ones(model, params):
    x = input_of(model)
    output, tangent = torch.func.jvp(
        lambda x: torch.func.functional_call(model, params, (x,)), (x,), (torch.ones_like(x),)
    )
    return {"output": output, "tangent": tangent}


def second_derivatives(model, params):
    def energy(x):
        return torch.func.functional_call(model, params, (x,)).pow(2).sum()

    return {"hessian": torch.func.hessian(energy)(input_of(model)[0]) / 8}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, of the first jvp
@pytest.mark.parametrize("transform", [gradient, gradients_of_samples, jacobian_times_ones, second_derivatives])
@each_setting
def test_function_transforms_agree_with_float64_and_training_goes_on(setting, transform):
    reference = Net().double()
    expected = transform(reference, dict(reference.named_parameters()))
    with session_of(setting):
        model, optimizer = prepared(setting, Net())
        found = transform(model, {name: param.detach() for name, param in model.named_parameters()})
        for name, value in expected.items():
            assert_close(setting, found[name], value)
        train(model, optimizer)


# -- fake tensors ------------------------------------------------------------------------------------------------------


@each_setting
def test_fake_tensors_go_through_whole_iterations_and_never_overflow(setting):
    with session_of(setting), FakeTensorMode():
        model, optimizer = prepared(setting, Net())
        scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
        for _ in range(2):
            loss = F.cross_entropy(model(torch.ones(5, 4)).float(), torch.zeros(5, dtype=torch.long))
            loops.step(loss, optimizer)
            optimizer.zero_grad()
            assert loss.shape == () and not amp.step_was_skipped(optimizer)
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == scale


@each_setting
def test_a_real_model_is_real_again_after_a_fake_forward_pass(setting):
    with session_of(setting):
        model, optimizer = prepared(setting, Net())
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert model(torch.ones(5, 4)).shape == (5, 3)
        assert_close(setting, model(X), exact(Net().double(), X.double()))
        train(model, optimizer)


# -- nested tensors, attention -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@each_setting
def test_nested_tensors_compute_what_their_parts_do(setting, layout):
    expected = exact(Net().double(), X.double())
    nested = torch.nested.nested_tensor([X[:2], X[2:]], layout=layout)
    with session_of(setting):
        model, optimizer = prepared(setting, Net())
        parts = torch.cat(model(nested).unbind())
        assert_close(setting, parts, expected)
        if layout is torch.strided:
            return  # torch has no backward pass of tanh for it
        loops.step(F.cross_entropy(parts.float(), CLASSES), optimizer)
        assert F.cross_entropy(model(X).float(), CLASSES) < F.cross_entropy(parts.float(), CLASSES)


def causal(query, key, value):
    """Attend to earlier positions, by flex attention with a score that a function changes."""
    return flex_attention(query, key, value, score_mod=lambda score, b, h, i, j: torch.where(i >= j, score, -1e9))


@pytest.mark.usefixtures("compiler_forgets")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@each_level
def test_flex_attention_agrees_with_attention_in_float64(setting):
    x = torch.linspace(-1, 1, 64).view(1, 8, 8)
    reference = Attention(lambda *heads: F.scaled_dot_product_attention(*heads, is_causal=True)).double()
    with session_of(setting), torch.no_grad():  # torch has no backward pass for it on a CPU
        expected = exact(reference, x.double())
        assert_close(setting, prepared(setting, Attention(causal))[0](x), expected)


# -- compilers ---------------------------------------------------------------------------------------------------------


@each_level
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.12's own, of torch.export.load
def test_an_exported_program_has_the_casts_and_survives_the_session(setting):
    if setting.casts_weights and features.is_version_within(newest="2.5"):
        pytest.skip("torch 2.5 exports the state dict, which is float32, in place of the weights")
    with session_of(setting):
        model, optimizer = prepared(setting, Net())
        expected = model(X).detach()
        program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
        assert torch.equal(program.module()(X[:3]), expected[:3]) or setting.level != "O0"
        saved = io.BytesIO()
        torch.export.save(program, saved)
        train(model, optimizer)
    saved.seek(0)
    found = torch.export.load(saved).module()(X)
    assert found.dtype is expected.dtype
    assert_close(setting, found, expected.double())


# -- subclasses and modes of a user ------------------------------------------------------------------------------------


class Named(torch.Tensor):
    """Stays what it is through functions of torch (``__torch_function__``)."""


class Wrapped(torch.Tensor):
    """Has another tensor and computes with it (``__torch_dispatch__``)."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Wrapped({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        args_inside, kwargs_inside = tree_map(unwrapped, (args, kwargs or {}))
        result = tree_map(wrapped, function(*args_inside, **kwargs_inside))
        return return_and_correct_aliasing(function, args, kwargs or {}, result)


def unwrapped(value):
    return value.inner if isinstance(value, Wrapped) else value


def wrapped(value):
    return Wrapped(value) if isinstance(value, torch.Tensor) else value


class FunctionMode(TorchFunctionMode):
    """Passes functions on."""

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Passes operations on."""

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def with_params(kind):
    """Return a network whose params are of a subclass."""
    model = Net()
    for module in model.children():
        for name, param in list(module.named_parameters()):
            data = param.detach()
            setattr(module, name, torch.nn.Parameter(kind(data) if kind is Wrapped else data.as_subclass(kind)))
    return model


@pytest.mark.parametrize("kind", [Named, Wrapped])
@each_setting
def test_inputs_of_a_subclass_stay_what_they_are(setting, kind):
    expected = exact(Net().double(), X.double())
    with session_of(setting):
        model, optimizer = prepared(setting, Net())
        output = model(kind(X) if kind is Wrapped else X.as_subclass(kind))
        assert type(output) is kind
        assert_close(setting, unwrapped(output).as_subclass(torch.Tensor), expected)
        loops.step(output.float().pow(2).mean(), optimizer)
        assert unwrapped(model(X)).pow(2).mean() < expected.pow(2).mean()


@each_setting
def test_params_of_a_subclass_stay_what_they_are(setting):
    expected = exact(Net().double(), X.double())
    with session_of(setting):
        model, optimizer = prepared(setting, with_params(Named))
        assert_close(setting, model(X).as_subclass(torch.Tensor), expected)
        train(model, optimizer)
        assert {type(param) for param in model.parameters()} == {Named}


@each_setting
def test_params_that_wrap_tensors_train_where_weights_are_not_cast(setting):
    expected = exact(Net().double(), X.double())
    with session_of(setting):
        if setting.casts_weights:
            model = with_params(Wrapped)
            before = {name: unwrapped(param.detach()).clone() for name, param in model.named_parameters()}
            with pytest.raises(AmpError, match=r"weight of a Linear is of the class Wrapped.*Use O1 or O4"):
                prepared(setting, model)
            assert all(torch.equal(param.inner, before[name]) for name, param in model.named_parameters())
            assert {param.dtype for param in model.parameters()} == {torch.float32}
            model.last, model.norm = Net().last, Net().norm
            model, _ = initialize(
                setting, model, torch.optim.SGD(model.parameters(), lr=0.5), keep_fp32=["first", "norm"]
            )
            assert model.last.weight.dtype is setting.low and model.first.weight.dtype is torch.float32
            return
        model, optimizer = prepared(setting, with_params(Wrapped))
        assert_close(setting, model(X).inner, expected)
        for _ in range(2):
            loops.step(model(X).float().pow(2).mean(), optimizer)
            optimizer.zero_grad()
        assert model(X).inner.pow(2).mean() < expected.pow(2).mean()


@pytest.mark.parametrize("mode", [FunctionMode, DispatchMode])
@each_setting
def test_training_within_a_mode_is_the_same_training(setting, mode):
    expected = exact(Net().double(), X.double())
    with session_of(setting), mode():
        model, optimizer = prepared(setting, Net())
        assert_close(setting, model(X), expected)
        train(model, optimizer)
