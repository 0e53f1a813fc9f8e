"""What the rules do to arguments: nesting, keywords, registrations, edited lists, banned functions."""

import collections

import pytest
import torch
import torch.nn.functional as F
from helpers.snapshots import snapshot
from opened import each_setting, opened

from ampcompat.errors import AmpNotImplementedError
from ampcompat.support.torch_compat import features

Point = collections.namedtuple("Point", "x y")


def dtypes_of(value):
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, dict):
        return {key: dtypes_of(item) for key, item in value.items()}
    return type(value)(*map(dtypes_of, value)) if hasattr(value, "_make") else type(value)(map(dtypes_of, value))


@each_setting
def test_opening_and_undoing_leaves_nothing_behind_any_number_of_times(setting):
    before = snapshot()
    for _ in range(2):
        with opened(setting) as backend:
            assert snapshot() != before
            assert backend.active()
        assert snapshot() == before
        assert not backend.active()


@each_setting
def test_tensors_in_nested_containers_and_keywords_are_cast(setting):
    with opened(setting) as backend:
        see = backend.wrap(lambda *args, **kwargs: (args, kwargs), "half")
        a = torch.ones(2, dtype=setting.high)
        args, kwargs = see([a, {"k": (a, 1)}], Point(a, "text"), flag=True, t=a, ids=torch.ones(2).long())
        assert dtypes_of(args[0][0]) is setting.low and args[0][1]["k"][0].dtype is setting.low
        assert type(args[1]) is Point and args[1].x.dtype is setting.low and args[1].y == "text"
        assert kwargs["t"].dtype is setting.low and kwargs["ids"].dtype is torch.int64 and kwargs["flag"] is True


@each_setting
def test_out_is_left_alone(setting):
    with opened(setting):
        a, out = torch.ones(2, 2, dtype=setting.high), torch.zeros(2, 2, dtype=setting.low)
        torch.mm(a, a, out=out)
        assert out.dtype is setting.low and out[0, 0] == 2


@each_setting
def test_half_takes_float64_too_and_float_leaves_it(setting):
    with opened(setting):
        a = torch.ones(2, 2, dtype=torch.float64)
        assert F.linear(a, a).dtype is setting.low
        assert torch.exp(a).dtype is torch.float64


@each_setting
def test_scalar_tensors_count_in_arithmetic_only_where_there_are_no_others(setting):
    if not features.promotes():
        pytest.skip("this torch leaves the promotion of arithmetic to us, and then every tensor counts")
    with opened(setting):
        assert (torch.ones(3).to(setting.low) + torch.ones((), dtype=setting.high)).dtype is setting.low
        assert (torch.ones(3) * torch.ones((), dtype=torch.float64)).dtype is torch.float32
        assert (torch.ones((), dtype=setting.low) + torch.ones((), dtype=setting.high)).dtype is setting.high
        assert (torch.ones(3).to(setting.low) + torch.ones(1, dtype=setting.high)).dtype is setting.high


@each_setting
@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
def test_in_place_functions_that_torch_promotes_are_not_wrapped(setting, name):
    if not features.promotes_in_addcmul():
        pytest.skip("this torch refuses other dtypes than that of self, so they are cast to it")
    values, function = [torch.full((3,), value) for value in (0.1, 0.7, 0.3)], getattr(torch.Tensor, name)
    wide = [values[0].to(setting.low).to(setting.high), *values[1:]]
    with opened(setting):
        assert getattr(torch.Tensor, name) is function
        found = function(values[0].to(setting.low), values[1], values[2])
    assert found.dtype is setting.low and torch.equal(found, function(*wide).to(setting.low))


@each_setting
def test_in_place_float_function_writes_back_with_a_gradient(setting):
    with opened(setting):
        x = torch.full((3,), 0.5, dtype=setting.low, requires_grad=True)
        y = x.clone()
        assert y.exp_() is y and y.dtype is setting.low
        y.sum().backward()
    assert torch.allclose(
        x.grad, torch.full((3,), 0.5, dtype=setting.low).to(setting.high).exp().to(setting.low), rtol=1e-2
    )


@each_setting
@pytest.mark.parametrize("inputs", ["low", "high"])
def test_a_negative_power_of_a_matrix_is_computed_in_float32_and_returned_in_half(setting, inputs):
    matrix = torch.tensor([[2.0, 1.0], [0.5, 3.0]], dtype=getattr(setting, inputs), requires_grad=True)
    wide = matrix.detach().double().requires_grad_()
    expected = {power: torch.matrix_power(wide, power) for power in (-2, -1, 2)}
    gradients = {power: torch.autograd.grad(value.sum(), wide)[0] for power, value in expected.items()}
    with opened(setting):
        found = {power: (torch.matrix_power(matrix, power), matrix.matrix_power(n=power)) for power in expected}
        found_gradients = {power: torch.autograd.grad(each[0].sum(), matrix)[0] for power, each in found.items()}
    for power, results in found.items():
        assert [each.dtype for each in results] == [setting.low, setting.low]
        for given, wanted in [(each, expected[power]) for each in results] + [
            (found_gradients[power], gradients[power])
        ]:
            assert (given.double() - wanted).abs().max() <= 2 * torch.finfo(setting.low).eps * wanted.abs().max()


@each_setting
def test_power_operator_in_place_keeps_its_object(setting):
    with opened(setting):
        x = same = torch.full((3,), 3.0, dtype=setting.low)
        try:
            in_place = torch.Tensor.__ipow__(x, 2)
        except NotImplementedError:
            in_place = NotImplemented
        if in_place is NotImplemented:
            pytest.skip(f"torch {torch.__version__} has no in-place power")
        x += torch.ones(3, dtype=setting.high)
        assert x is same and x.dtype is setting.low and x.tolist() == [10.0] * 3


@each_setting
def test_binary_cross_entropy_refuses_half_and_explains(setting):
    p = torch.full((3,), 0.5)
    with opened(setting) as backend:
        with pytest.raises(AmpNotImplementedError, match="with_logits.*register_float_function"):
            F.binary_cross_entropy(p.to(setting.low), p.to(setting.high))
        with pytest.raises(AmpNotImplementedError):
            torch.nn.BCELoss()(p.to(setting.high), p.to(setting.low))
        assert F.binary_cross_entropy(p.to(setting.high), p.to(setting.high)).dtype is setting.high
        with backend.paused():
            F.binary_cross_entropy(p.to(setting.high), p.to(setting.high))
    with opened(setting, allow_banned=True):
        assert F.binary_cross_entropy(p.to(setting.low), p.to(setting.low)).dtype is setting.high


@each_setting
def test_sigmoid_registered_as_float_makes_binary_cross_entropy_work(setting):
    with opened(setting, [(torch, "sigmoid", "float")]):
        p = torch.nn.Sigmoid()(torch.zeros(3, dtype=setting.low))
        assert F.binary_cross_entropy(p, torch.ones(3, dtype=setting.high)).dtype is setting.high


@each_setting
@pytest.mark.parametrize(
    "owner, name, rule",
    [(F, "softmax", "half"), (torch, "exp", "half"), (F, "linear", "float"), (torch, "matmul", "float")],
)
def test_registration_beats_the_table(setting, owner, name, rule):
    with opened(setting, [(owner, name, rule)]):
        x = torch.ones(2, 2).to(setting.low if rule == "float" else setting.high)
        args = {"softmax": (x, 1), "exp": (x,)}.get(name, (x, x))
        assert getattr(owner, name)(*args).dtype is (setting.high if rule == "float" else setting.low)


class Owner:
    """Something of a user's with functions of every form."""

    @staticmethod
    def static(x):
        return x

    @classmethod
    def of_class(cls, x):
        return cls, x

    def method(self, x):
        return self, x


class Child(Owner):
    pass


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@each_setting
def test_static_methods_class_methods_and_methods_can_be_registered(setting):
    before = dict(vars(Owner))
    x = torch.ones(2, dtype=setting.high)
    with opened(setting, [(Owner, name, "half") for name in ("static", "of_class", "method")]):
        child = Child()
        assert Owner.static(x).dtype is child.static(x).dtype is setting.low
        assert (
            Owner.of_class(x)[0] is Owner
            and child.of_class(x)[0] is Child
            and child.of_class(x)[1].dtype is setting.low
        )
        assert child.method(x)[0] is child and child.method(x)[1].dtype is setting.low
    assert dict(vars(Owner)) == before


@each_setting
def test_function_apply_can_be_registered(setting):
    with opened(setting, [(Double, "apply", "half")]):
        x = torch.ones(2, dtype=setting.high, requires_grad=True)
        y = Double.apply(x)
        assert y.dtype is setting.low
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0] and x.grad.dtype is setting.high
    assert "apply" not in vars(Double)


@each_setting
def test_attention_layers_do_not_bypass_the_casts(setting):
    layer = torch.nn.TransformerEncoderLayer(8, 2).to(setting.high).eval()
    attention = torch.nn.MultiheadAttention(8, 2).to(setting.high).eval()
    x = torch.ones(3, 2, 8, dtype=setting.high)
    with opened(setting), torch.no_grad():
        assert attention(x, x, x)[0].dtype is setting.low
        assert layer(x).dtype is setting.high  # it ends in a layer norm


@each_setting
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("packed", [False, True], ids=["tensor", "packed"])
def test_recurrent_layers_run_in_low_precision_from_any_input(setting, kind, packed):
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(4, 3, num_layers=2, bidirectional=True).to(setting.high)
    values = torch.randn(5, 2, 4, dtype=setting.high)
    exact = layer.double()(values.double())[0]
    layer.to(setting.high)
    for dtype in {setting.low, setting.high, torch.float64}:
        with opened(setting):
            x = values.to(dtype)
            if packed:
                x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 5]))
            out = layer(x)[0]
            out = out.data.view(5, 2, 6) if packed else out
            assert out.dtype is setting.low
            out.sum().backward()
        assert all(p.grad.dtype is setting.high and bool(torch.isfinite(p.grad).all()) for p in layer.parameters())
        assert torch.allclose(out.double(), exact, atol=0.05)


@each_setting
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_recurrent_cells_run_in_low_precision(setting, kind):
    cell = getattr(torch.nn, kind)(4, 3).to(setting.high)
    with opened(setting):
        out = cell(torch.ones(2, 4, dtype=setting.high))
        assert (out[0] if isinstance(out, tuple) else out).dtype is setting.low


def doubled(a: torch.Tensor) -> torch.Tensor:
    return a * 2


class Doubling:
    """Refers to a function of this module, which TorchScript looks up in the caller's globals."""

    def __init__(self, a: torch.Tensor):
        self.result = doubled(a)


@each_setting
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_functions_modules_and_classes_can_be_scripted_while_open(setting):
    def double_product(a: torch.Tensor) -> torch.Tensor:
        return F.softmax(torch.matmul(a, a) + torch.exp(a), dim=1)

    with opened(setting):
        a = torch.ones(2, 2)
        scripted = torch.jit.script(double_product)
        assert scripted(a).shape == (2, 2)
        assert torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))(a).shape == (2, 2)
        assert F.linear(a, a).dtype is setting.low
        assert torch.jit.script(Doubling)(torch.ones(1)).result.item() == 2.0
