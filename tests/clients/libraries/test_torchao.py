"""torchao: float8 and quantized training, quantization-aware training, 8-bit optimizers; beside float32 without amp."""

import functools

import pytest
import torch
import torch.nn.functional as F
from helpers import client_modules, loops
from helpers.networks import REAL, initialize, session_of

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError

client_modules.imported("torchao", "libraries")
float8 = client_modules.imported("torchao.float8", "libraries")
quantization = client_modules.imported("torchao.quantization", "libraries")
qat = client_modules.imported("torchao.quantization.qat", "libraries")
quantized_training = client_modules.imported("torchao.prototype.quantized_training", "libraries")
optim = client_modules.imported("torchao.optim", "libraries")

each_setting = pytest.mark.parametrize("setting", REAL)
#: One setting of each of the levels O1, O2 and O5.
each_mixed_level = pytest.mark.parametrize("setting", [each for each in REAL if each.id in ("O1-native", "O2", "O5")])
pytestmark = [
    pytest.mark.usefixtures("compiler_forgets"),
    pytest.mark.filterwarnings("ignore"),  # torchao's own, on names of torch; torch's, on torchao's classes
]
STEPS = 8


def make_net(norm=True, bias=True):
    """Return three linear layers of widths that float8 products take."""
    torch.default_generator.manual_seed(0)
    layers = [torch.nn.Linear(32, 64, bias), torch.nn.ReLU(), torch.nn.Linear(64, 64, bias)]
    return torch.nn.Sequential(*layers, *[torch.nn.LayerNorm(64)] * norm, torch.nn.Linear(64, 16, bias))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 32, generator=generator), torch.randint(0, 16, (32,), generator=generator)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def losses_of(model, optimizer, step=loops.step):
    x, classes = batch()
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x).float(), classes)
        step(loss, optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def step_without_amp(loss, optimizer):
    loss.backward()
    optimizer.step()


losses_without_amp = functools.partial(losses_of, step=step_without_amp)


def assert_same_losses(found, expected):
    """The losses fall, and those of amp differ from float32's by a twentieth of the fall at most."""
    allowed = 0.05 * (expected[0] - expected[-1])
    assert allowed > 0.001
    assert max(abs(one - other) for one, other in zip(found, expected)) <= allowed


def in_float8(model):
    return float8.convert_to_float8_training(model)


def quantization_aware(model):
    activations = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    weights = qat.IntxFakeQuantizeConfig(torch.int4, group_size=32)
    config = qat.QATConfig(activation_config=activations, weight_config=weights, step="prepare")
    quantization.quantize_(model, config)
    return model


def int8_weights(model, **options):
    quantization.quantize_(model, quantized_training.int8_weight_only_quantized_training(), **options)
    return model


def int8_products(model, **options):
    quantization.quantize_(model, quantized_training.int8_mixed_precision_training(), **options)
    return model


@pytest.mark.parametrize("convert", [in_float8, quantization_aware])
@each_setting
def test_training_in_float8_and_with_fake_quantization_works_at_every_level(setting, convert):
    model = convert(make_net())
    expected = losses_without_amp(model, sgd(model.parameters()))
    with session_of(setting):
        model = convert(make_net())
        found = losses_of(*initialize(setting, model, sgd(model.parameters())))
    assert_same_losses(found, expected)


@pytest.mark.parametrize("convert", [int8_weights, int8_products])
@each_setting
def test_int8_weights_train_where_weights_are_not_cast_and_are_refused_elsewhere(setting, convert):
    model = convert(make_net())
    expected = losses_without_amp(model, sgd(model.parameters()))
    model = convert(make_net())
    kind = type(model[0].weight)
    with session_of(setting):
        if setting.casts_weights:
            with pytest.raises(AmpError, match=f"is of the class {kind.__name__}.*Use O1 or O4"):
                initialize(setting, model, sgd(model.parameters()))
            model = convert(make_net(), filter_fn=lambda module, name: name == "2")
            found = losses_of(*initialize(setting, model, sgd(model.parameters()), keep_fp32=["2"]))
            assert model[0].weight.dtype is setting.low
        else:
            found = losses_of(*initialize(setting, model, sgd(model.parameters())))
        assert type(model[2].weight) is kind
    assert_same_losses(found, expected)


@each_mixed_level
def test_adamw_with_8_bit_moments_takes_2_bytes_per_param_beside_masters(setting):
    def adamw(params):
        return optim.AdamW8bit(params, lr=1e-2, block_size=64)

    model = make_net()
    with torch.compiler.set_stance("force_eager"):  # torchao compiles the step, which takes a minute
        expected = losses_without_amp(model, adamw(model.parameters()))
    with session_of(setting), torch.compiler.set_stance("force_eager"):
        model = make_net()
        model, optimizer = initialize(setting, model, adamw(model.parameters()))
        found = losses_of(model, optimizer)
        moments = [entry["exp_avg"] for entry in optimizer.state.values() if entry["exp_avg"].numel() >= 4096]
        assert {type(each).__name__ for each in moments} == {"OptimState8bit"}
        assert all(each.codes.dtype is torch.uint8 for each in moments)
        assert {param.dtype for param in amp.master_params(optimizer)} == {torch.float32}
    assert_same_losses(found, expected)


@pytest.mark.parametrize(
    "dtype, options, wrong",
    [(torch.float32, {}, []), (torch.bfloat16, {}, ["lost_updates"])]
    + [(torch.bfloat16, {"bf16_stochastic_round": True}, [])],
)
def test_moments_of_8_bit_are_right_and_bfloat16_weights_are_not_unless_they_are_rounded_at_random(
    dtype, options, wrong
):
    model = make_net().to(dtype)
    with torch.compiler.set_stance("force_eager"), ampcompat.audit([]) as audit:
        optimizer = optim.AdamW8bit(model.parameters(), lr=1e-5, block_size=64, **options)
        for _ in range(30):  # so that state that cannot be copied is to be copied
            F.cross_entropy(model(batch()[0].to(dtype)).float(), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [each["kind"] for each in audit.wrong] == wrong


@each_mixed_level
def test_muon_trains_matrices(setting):
    def muon(params):
        return torch.optim.Muon(params, lr=1e-2)

    model = make_net(norm=False, bias=False)
    expected = losses_without_amp(model, muon(model.parameters()))
    with session_of(setting):
        model = make_net(norm=False, bias=False)
        model, optimizer = initialize(setting, model, muon(model.parameters()))
        found = losses_of(model, optimizer)
        moments = {entry["momentum_buffer"].dtype for entry in optimizer.state.values()}
        assert moments == {param.dtype for param in amp.master_params(optimizer)} == {torch.float32}
    assert_same_losses(found, expected)


@pytest.mark.parametrize("name", ["AdamW8bit", "Muon"])
def test_with_stored_masters_the_weights_are_those_of_o5_bit_for_bit(name):
    def trained(stored):
        has_bias = name != "Muon"
        model = make_net(norm=has_bias, bias=has_bias)
        make = {"AdamW8bit": functools.partial(optim.AdamW8bit, block_size=64), "Muon": torch.optim.Muon}[name]
        with ampcompat.session(), torch.compiler.set_stance("force_eager"):
            optimizer = make(model.parameters(), lr=1e-2)
            amp.initialize(model, optimizer, opt_level="O5", verbosity=0, store_param_remainders=stored)
            losses_of(model, optimizer)
            return model.state_dict()

    found, expected = trained(True), trained(False)
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


class Small(torch.nn.Module):
    """As little as there is to compile."""

    def __init__(self):
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.layer = torch.nn.Linear(32, 16)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@each_mixed_level
def test_compiled_with_reduced_overhead_a_model_computes_the_same(setting):
    model = Small()
    expected = losses_without_amp(model, sgd(model.parameters()))
    with session_of(setting):
        model = Small()
        model, optimizer = initialize(setting, model, sgd(model.parameters()))
        found = losses_of(torch.compile(model, mode="reduce-overhead"), optimizer)
    assert_same_losses(found, expected)
