"""Optimizers with methods beside ``step``, wrappers around optimizers, and ``param_groups`` that a script rebuilds.

The model of every level is the same script without amp, in float64.
"""

import copy
import inspect

import pytest
import torch
from helpers import loops
from helpers.networks import SETTINGS, each_setting, initialize, session_of, settings_at
from helpers.pairing import paired
from test_optimizer_calls import skip_unless_step_hooks_run

from ampcompat import amp
from ampcompat.errors import GradientOverflowError

with_masters = settings_at("O2", "O5")
RATE = 0.125


class TwoSteps(torch.optim.Optimizer):
    """Sharpness-aware minimization in two calls, around an inner SGD that shares its groups."""

    def __init__(self, params):
        super().__init__(params, {"lr": RATE})
        self.inner = torch.optim.SGD(self.param_groups, lr=RATE)
        self.param_groups = self.inner.param_groups
        self.calls = []

    def _params(self):
        return [param for group in self.param_groups for param in group["params"] if param.grad is not None]

    @torch.no_grad()
    def first_step(self):
        self.calls.append("first")
        norm = torch.stack([param.grad.norm() for param in self._params()]).norm()
        for param in self._params():
            self.state[param]["before"] = param.data.clone()
            param.add_(param.grad * 0.25 / norm)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        self.calls.append("second")
        for param in self._params():
            param.data = self.state[param]["before"]
        self.inner.step()
        self.zero_grad()


class Averaging(torch.optim.SGD):
    """SGD that keeps an average of the weights, which ``eval`` puts into the params and ``train`` takes out again."""

    def step(self, closure=None):
        super().step(closure)
        for param in self._params():
            average = self.state[param].setdefault("average", param.detach().clone())
            average.add_(param.detach() - average, alpha=0.5)

    def _params(self):
        return [param for group in self.param_groups for param in group["params"]]

    def _exchange(self):
        for param in self._params():
            average = self.state[param]["average"]
            kept = param.data.clone()
            param.data.copy_(average)
            average.copy_(kept)

    def eval(self):
        self._exchange()

    def train(self):
        self._exchange()


class Lookahead(torch.optim.Optimizer):
    """Every second step goes half of the way back. It is made around an optimizer that may be initialized already."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__([{"params": [torch.nn.Parameter(torch.zeros(1))]}], {})
        self.param_groups = inner.param_groups
        self.slow = {}
        self.count = 0

    def zero_grad(self, *args, **kwargs):
        self.inner.zero_grad(*args, **kwargs)

    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for param in group["params"]:
                slow = self.slow.setdefault(id(param), param.detach().clone())
                if param.grad is not None and self.count % 2 == 0:
                    slow.add_(param.data - slow, alpha=0.5)
                    param.data.copy_(slow)


def network(dtype):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(dtype)


def loss_of(model, dtype=None):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    return (model(x.to(dtype)).double() - x.double().sum(1, keepdim=True)).pow(2).mean()


def error_of(model, reference):
    own, theirs = ([param.detach().double() for param in each.parameters()] for each in (model, reference))
    moved = sum(float((b - a.double()).pow(2).sum()) for a, b in zip(network(torch.float64).parameters(), theirs))
    return (sum(float((a - b).pow(2).sum()) for a, b in zip(own, theirs)) / moved) ** 0.5


def tolerance(setting):
    return 1e-5 if setting.level == "O0" else 32 * torch.finfo(setting.low).eps


def backward(setting, model, optimizer, factor=1.0):
    loops.backward(loss_of(model, setting.high) * factor, optimizer)


def begin(setting, make, **options):
    model = network(setting.high)
    optimizer = make(model.parameters())
    initialize(setting, model, optimizer, **dict({"loss_scale": 128.0}, **options))
    return model, optimizer


def check(setting, make, train):
    """Compare a training with the same in float64 without amp; ``train`` gets a function that does a backward pass."""
    reference = network(torch.float64)
    train(reference, make(reference.parameters()), lambda: loss_of(reference, torch.float64).backward())
    with session_of(setting):
        model, optimizer = begin(setting, make)
        train(model, optimizer, lambda: backward(setting, model, optimizer))
        assert all(param.dtype is setting.high for param in amp.master_params(optimizer) if setting.has_masters)
    assert error_of(model, reference) <= tolerance(setting)


# -- methods -----------------------------------------------------------------------------------------------------------


@each_setting
def test_an_optimizer_that_steps_in_two_calls_trains_as_without_amp(setting):
    def train(model, optimizer, pass_on):
        for _ in range(8):
            for step in (optimizer.first_step, optimizer.second_step):
                pass_on()
                step()

    check(setting, TwoSteps, train)


@settings_at("O1", "O2")
def test_both_calls_are_skipped_if_the_gradients_of_the_first_overflow(setting, session):
    model, optimizer = begin(setting, TwoSteps, loss_scale="dynamic", init_scale=8.0)
    before = [param.detach().clone() for param in model.parameters()]
    backward(setting, model, optimizer, factor=float("inf"))
    optimizer.first_step()
    optimizer.zero_grad()
    backward(setting, model, optimizer)
    optimizer.second_step()
    assert optimizer.calls == []
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters()))
    optimizer.zero_grad()
    for name in ("first_step", "second_step"):
        backward(setting, model, optimizer)
        getattr(optimizer, name)()
    assert optimizer.calls == ["first", "second"]
    assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters()))


@settings_at("O1", "O2")
def test_an_overflow_between_the_two_calls_raises(setting, session):
    model, optimizer = begin(setting, TwoSteps, loss_scale="dynamic", init_scale=8.0)
    backward(setting, model, optimizer)
    optimizer.first_step()
    backward(setting, model, optimizer, factor=float("inf"))
    with pytest.raises(GradientOverflowError, match="between first_step and second_step of TwoSteps"):
        optimizer.second_step()


@each_setting
def test_weights_that_a_method_puts_into_the_params_are_in_the_model_and_in_its_state_dict(setting):
    def train(model, optimizer, pass_on):
        for _ in range(4):
            optimizer.zero_grad()
            pass_on()
            optimizer.step()

    reference = network(torch.float64)
    by_hand = Averaging(reference.parameters(), lr=RATE)
    train(reference, by_hand, lambda: loss_of(reference, torch.float64).backward())
    with session_of(setting):
        model, optimizer = begin(setting, lambda params: Averaging(params, lr=RATE))
        train(model, optimizer, lambda: backward(setting, model, optimizer))
        for name in ("eval", "train"):
            getattr(by_hand, name)()
            getattr(optimizer, name)()
            assert error_of(model, reference) <= tolerance(setting)
            saved = copy.deepcopy(network(setting.high))
            saved.load_state_dict(model.state_dict())
            assert error_of(saved, reference) <= tolerance(setting)


# -- wrappers ----------------------------------------------------------------------------------------------------------


@paired("setting, when, given", SETTINGS, ["before", "after"], ["wrapper", "inner"])
def test_a_wrapper_around_an_optimizer_trains_as_without_amp(setting, when, given):
    reference = network(torch.float64)
    by_hand = Lookahead(torch.optim.SGD(reference.parameters(), lr=RATE))
    for _ in range(6):
        by_hand.zero_grad()
        loss_of(reference, torch.float64).backward()
        by_hand.step()
    with session_of(setting):
        model = network(setting.high)
        inner = torch.optim.SGD(model.parameters(), lr=RATE)
        wrapper = Lookahead(inner) if when == "before" else None
        initialized = wrapper or inner
        initialize(setting, model, initialized, loss_scale=128.0)
        wrapper = wrapper or Lookahead(inner)
        for _ in range(6):
            wrapper.zero_grad()
            backward(setting, model, wrapper if given == "wrapper" else initialized)
            wrapper.step()
        found = copy.deepcopy(network(setting.high))
        found.load_state_dict(model.state_dict())
        with torch.no_grad():
            loss = loss_of(model, setting.high)
    assert error_of(found, reference) <= tolerance(setting)
    assert float(loss) == pytest.approx(float(loss_of(reference, torch.float64)), rel=8 * tolerance(setting))


@settings_at("O2", "O5", stored=True)
def test_half_params_that_a_script_reads_after_the_step_of_a_wrapper_are_the_masters_rounded(setting, session):
    skip_unless_step_hooks_run()
    model, inner = begin(setting, lambda params: torch.optim.SGD(params, lr=RATE))
    wrapper = Lookahead(inner)
    for _ in range(2):
        wrapper.zero_grad()
        backward(setting, model, inner)
        wrapper.step()
        read = [param.detach().clone() for param in model.parameters()]
        for half, master in zip(read, amp.master_params(inner)):
            assert torch.equal(half, master.detach().to(half.dtype))


# -- param_groups ------------------------------------------------------------------------------------------------------


#: Keyword arguments of ``zero_grad``; torch before 1.7 takes none, and keeps gradients of zeros.
CLEARED = (
    [{"set_to_none": True}, {"set_to_none": False}]
    if "set_to_none" in inspect.signature(torch.optim.Optimizer.zero_grad).parameters
    else [{}]
)


#: When groups are rebuilt: (step, whether after its backward pass).
MOMENTS = [(0, False), (3, False), (3, True)]


@paired("setting, moment, is_frozen, cleared", SETTINGS, MOMENTS, [False, True], CLEARED)
def test_groups_that_a_script_rebuilds_of_the_models_params_train(setting, moment, is_frozen, cleared):
    def rebuild(model, optimizer):
        model[0].weight.requires_grad_(not is_frozen)
        optimizer.param_groups[0]["params"] = [param for param in model.parameters() if param.requires_grad]

    def train(model, optimizer, pass_on):
        for step in range(6):
            if moment == (step, False):
                rebuild(model, optimizer)
            optimizer.zero_grad(**cleared)
            pass_on()
            if moment == (step, True):
                rebuild(model, optimizer)
            optimizer.step()

    check(setting, lambda params: torch.optim.SGD(params, lr=RATE, momentum=0.5), train)


@settings_at("O0", "O1", "O2", "O4", "O5", stored=True)
def test_params_that_a_script_adds_to_the_list_of_a_group_which_it_keeps_train(setting, session):
    model = network(setting.high)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=RATE)
    kept = optimizer.param_groups[0]["params"]
    initialize(setting, model, optimizer, loss_scale=128.0)
    for layer in list(model)[1:]:
        before = [param.detach().clone() for param in layer.parameters()]
        backward(setting, model, optimizer)
        kept += layer.parameters()
        optimizer.zero_grad()
        backward(setting, model, optimizer)
        optimizer.step()
        assert not any(map(torch.equal, before, layer.parameters()))
    assert kept is optimizer.param_groups[0]["params"]


@paired("setting, begins_frozen, by_groups", SETTINGS, [False, True], [False, True])
def test_params_that_a_script_freezes_and_unfreezes_through_the_groups_or_the_model_train_while_not_frozen(
    setting, begins_frozen, by_groups, session
):
    model = network(setting.high)
    layers = [model[0], model[2]]
    model[0].requires_grad_(not begins_frozen)
    optimizer = torch.optim.SGD([{"params": list(layer.parameters())} for layer in layers], lr=RATE)
    initialize(setting, model, optimizer, loss_scale=128.0)
    is_frozen = begins_frozen
    for is_of_group in (by_groups, not by_groups, by_groups):
        for param in optimizer.param_groups[0]["params"] if is_of_group else model[0].parameters():
            param.requires_grad_(is_frozen)
        is_frozen = not is_frozen
        before = [param.detach().clone() for param in model[0].parameters()]
        optimizer.zero_grad()
        backward(setting, model, optimizer)
        optimizer.step()
        assert all(map(torch.equal, before, model[0].parameters())) == is_frozen
        assert all(param.requires_grad != is_frozen for param in model[0].parameters())


@with_masters
def test_a_param_that_was_frozen_in_the_model_and_in_the_groups_is_unfrozen_by_either(setting, session):
    model, optimizer = begin(setting, lambda params: torch.optim.SGD(params, lr=RATE))
    model.requires_grad_(False)
    for param in amp.master_params(optimizer):
        param.requires_grad_(False)
    loss_of(model, setting.high)
    model.requires_grad_(True)
    loss_of(model, setting.high)
    assert all(param.requires_grad for param in amp.master_params(optimizer))


@with_masters
def test_a_param_that_was_frozen_before_it_was_copied_with_its_optimizer_stays_frozen(setting, session):
    model, optimizer = begin(setting, lambda params: torch.optim.SGD(params, lr=RATE))
    model[0].requires_grad_(False)
    model, optimizer = copy.deepcopy((model, optimizer))
    loss_of(model, setting.high)
    assert not any(param.requires_grad for param in model[0].parameters())


# -- hooks and compilers -----------------------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_after_a_step_see_the_weights_of_after_it(setting, when, session):
    skip_unless_step_hooks_run()
    seen = []

    def register(model, optimizer):
        optimizer.register_step_post_hook(lambda *args: seen.append(model[0].weight.detach().clone()))

    model = network(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if when == "before":
        register(model, optimizer)
    initialize(setting, model, optimizer, loss_scale=128.0)
    if when == "after":
        register(model, optimizer)
    for step in range(2):
        optimizer.zero_grad()
        backward(setting, model, optimizer)
        optimizer.step()
        assert len(seen) == step + 1 and torch.equal(seen[-1], model[0].weight.detach())


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch does not compile")
@settings_at("O0", "O1", "O2", "O5")
@pytest.mark.parametrize("options", [{"loss_scale": 8.0}, {"loss_scale": "dynamic"}], ids=str)
def test_a_compiled_step_is_the_step(setting, options, compiler_forgets, session):
    def run(compiles):
        model, optimizer = begin(setting, lambda params: torch.optim.SGD(params, lr=RATE), **options)
        step = torch.compile(optimizer.step, backend="eager") if compiles else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            backward(setting, model, optimizer)
            step()
        return [param.detach().clone() for param in model.parameters()]

    assert all(map(torch.equal, run(False), run(True)))
