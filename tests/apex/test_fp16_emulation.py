"""Networks that ``apex.fp16_utils`` has put into half are emulated on a CPU, without ``amp.initialize``."""

import contextlib
import copy
import gc

import pytest
import torch
import torch.utils.checkpoint
from helpers.copies import pickled, saved_and_loaded
from helpers.precision import HIGH, LOW, PAIR

from ampcompat.apex import fp16_utils
from ampcompat.engine.casting import emulated_half_arithmetic, emulated_half_models
from ampcompat.support.torch_compat import features

if not features.has_function_modes():
    pytest.skip("this torch has no torch function modes", allow_module_level=True)


class Net(torch.nn.Module):
    """Convolution, batch norm, LSTM, product of activations, linear; a part of it under a checkpoint on request."""

    def __init__(self, checkpoint=None):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv1d(3, 4, 3, bias=False), torch.nn.BatchNorm1d(4)
        self.recurrent, self.head = torch.nn.LSTM(4, 5, batch_first=True), torch.nn.Linear(5, 2)
        self.checkpoint = checkpoint
        self.seen = []

    def block(self, x):
        self.seen.append(emulated_half_models.is_active())
        hidden = self.recurrent(x)[0]
        return hidden @ hidden.transpose(1, 2) @ hidden

    def forward(self, x):
        x = self.norm(self.convolution(x)).transpose(1, 2)
        if self.checkpoint is None:
            x = self.block(x)
        else:
            x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.checkpoint)
        return self.head(x)


def by_optimizer_of(module):
    fp16_utils.FP16_Optimizer(torch.optim.SGD(module.parameters(), lr=0.1))
    return module


def by_optimizer(net):
    net = net.to(LOW)
    net.norm.to(HIGH)
    return by_optimizer_of(net)


def by_param_lists(net):
    net = net.to(LOW)
    net.norm.to(HIGH)
    fp16_utils.prep_param_lists(net)
    return net


WAYS = {
    "network_to_half": fp16_utils.network_to_half,
    "FP16Model": fp16_utils.FP16Model,
    "convert_network": lambda net: fp16_utils.convert_network(net, LOW),
    "tofp16": lambda net: torch.nn.Sequential(fp16_utils.tofp16(), fp16_utils.BN_convert_float(net.to(LOW))),
    "FP16_Optimizer": by_optimizer,
    "prep_param_lists": by_param_lists,
}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def half_math_is_on(monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "on")


def batch():
    return torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1)).to(LOW)


def skip_if_batch_norm_is_missing():
    """Skip where torch itself, without emulation, has no batch norm of half with params of float32."""
    if not features.has_mixed_batch_norm("cpu", *PAIR):
        pytest.skip("this torch has no batch norm of {} with params of {} on the CPU".format(*PAIR))


def inner(model):
    return next(module for module in model.modules() if isinstance(module, Net))


def passed(model, x):
    """Return the output and the gradients of one pass."""
    model.zero_grad()
    output = model(x)
    output.to(HIGH).pow(2).mean().backward()
    return [output.detach()] + [param.grad.clone() for param in model.parameters()]


@each_way
@pytest.mark.parametrize("setting", ["on", "off"])
def test_its_forward_is_emulated_and_nothing_else_is(way, setting, monkeypatch):
    if setting == "off":
        skip_if_batch_norm_is_missing()
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, setting)
    model = WAYS[way](Net().to(HIGH))
    with torch.no_grad():
        output = model(batch())
    assert inner(model).seen == [setting == "on"] and output.dtype is LOW
    assert not emulated_half_models.is_active()


@each_way
def test_outputs_and_gradients_are_those_of_float64_within_half_rounding(way):
    torch.manual_seed(3)
    model = WAYS[way](Net().to(HIGH))
    reference = copy.deepcopy(inner(model)).double()
    found, expected = passed(model, batch()), passed(reference, batch().double())
    for one, other in zip(found, expected):
        assert (one.double() - other).norm() <= 3 * torch.finfo(LOW).eps * other.norm()


@each_way
def test_copies_and_pickles_are_emulated_too_and_state_dicts_do_not_contain_it(way, monkeypatch):
    model = WAYS[way](Net().to(HIGH))
    names = list(model.state_dict())
    assert all(not name.startswith("_amp") and "_amp" not in name for name in names)
    clones = [copy.deepcopy(model), pickled(model), saved_and_loaded(model)]
    expected = passed(model, batch())
    for clone in clones:
        clone.load_state_dict(model.state_dict())
        for one, other in zip(passed(clone, batch())[1:], expected[1:]):
            assert torch.equal(one, other)
        assert inner(clone).seen == [True]
    skip_if_batch_norm_is_missing()
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "off")
    elsewhere = pickled(model)  # loaded where half is not emulated
    inner(elsewhere).seen = []
    elsewhere(batch())
    assert inner(elsewhere).seen == [False]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", ["network_to_half", "FP16_Optimizer"])
def test_a_checkpoint_recomputes_as_it_computed(way, reentrant):
    torch.manual_seed(3)
    plain = WAYS[way](Net().to(HIGH))
    clone = copy.deepcopy(plain)
    inner(clone).checkpoint = reentrant
    for one, other in zip(passed(plain, batch()), passed(clone, batch())):
        # A reentrant checkpoint hands back its gradient in another layout, which batch norm adds up in another order.
        assert (one.double() - other.double()).norm() <= torch.finfo(LOW).eps * other.double().norm() * reentrant
    assert inner(clone).seen == [True, True]


def test_a_class_is_put_back_when_its_last_network_is_gone():
    gc.collect()
    before = vars(Net)["forward"]
    model = fp16_utils.network_to_half(Net().to(HIGH))
    assert vars(Net)["forward"] is not before
    del model
    gc.collect()
    assert vars(Net)["forward"] is before


@pytest.mark.parametrize("way", ["network_to_half", "convert_network"])
def test_a_network_on_another_device_is_not_touched_by_the_mode(way):
    class Seen(torch.nn.Linear):
        def forward(self, x):
            modes.append(emulated_half_models.is_active())
            return x

    modes = []
    model = WAYS[way](torch.nn.Sequential(Seen(2, 2).to(HIGH)))
    model(torch.ones(1, 2))
    model.to("meta")(torch.ones(1, 2, device="meta"))
    assert modes == [True, False]


def test_a_network_within_a_container_that_is_never_called_is_emulated_too():
    class System(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net().to(HIGH)

    system = System()
    by_optimizer_of(system.to(LOW))
    system.net.norm.to(HIGH)
    system.net(batch())
    assert system.net.seen == [True]


def test_networks_that_hold_no_half_are_left_alone():
    net = torch.nn.Linear(2, 2).to(HIGH)
    assert fp16_utils.BN_convert_float(net) is net
    fp16_utils.prep_param_lists(net)
    fp16_utils.convert_network(net, HIGH)
    assert not [name for name in vars(net) if name.startswith("_amp")]


def test_the_pair_of_dtypes_is_that_of_the_conversion():
    net = fp16_utils.convert_network(torch.nn.Linear(2, 2), torch.bfloat16)
    with half_mode_seen() as seen:
        assert net(torch.ones(1, 2, dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert seen == [HIGH] or PAIR.low is torch.float32


@contextlib.contextmanager
def half_mode_seen():
    """Yield a list of the dtypes that ``linear`` is really computed in."""
    seen = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            if function is torch.nn.functional.linear:
                seen.append(args[0].dtype)
            return function(*args, **(kwargs or {}))

    with Recorder():
        yield seen
