"""Specification 7.9: learning-rate schedulers, made before or after ``initialize``, are quiet and right, at skips too.

Warnings are errors in this suite, so that every test here also tests silence.
"""

import inspect

import pytest
import torch
from helpers import loops
from helpers.half_kernels import trains_in
from helpers.networks import (
    SETTINGS,
    begin,
    each_setting,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
)
from helpers.pairing import paired

import ampcompat
from ampcompat import amp

SCHEDULERS = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
    "ReduceLROnPlateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
}


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def advance(scheduler):
    arguments = (1.0,) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else ()
    scheduler.step(*arguments)


def plain_rates(make_scheduler, count):
    """Return the learning rates that the scheduler gives without amp."""
    optimizer = make_optimizer(make_network())
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(count):
        optimizer.step()
        advance(scheduler)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@paired("setting, name, made, skipped", SETTINGS, SCHEDULERS, ["before", "after"], [None, 0, 2])
def test_rates_are_those_without_amp(setting, name, made, skipped, session):
    model, batch = make_network(setting), make_batch(setting)
    optimizer = make_optimizer(model)
    scheduler = SCHEDULERS[name](optimizer) if made == "before" else None
    initialize(setting, model, optimizer, loss_scale="dynamic")
    amp._amp_state.loss_scalers[0]._loss_scale = 64.0
    scheduler = scheduler or SCHEDULERS[name](optimizer)
    rates = []
    for iteration in range(4):
        optimizer.zero_grad()
        loss = model(batch[0]).float().sum() * (float("inf") if iteration == skipped else 2.0**-6)
        loops.step(loss, optimizer)
        assert amp.step_was_skipped(optimizer) == (iteration == skipped)
        advance(scheduler)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == plain_rates(SCHEDULERS[name], 4)


@each_setting
def test_a_step_forgotten_before_the_schedulers_is_still_warned_about(setting, session):
    model = make_network(setting)
    optimizer = make_optimizer(model)
    initialize(setting, model, optimizer)
    scheduler = SCHEDULERS["StepLR"](optimizer)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        scheduler.step()


@each_setting
def test_a_scheduler_outlives_the_session(setting):
    model = make_network(setting)
    optimizer = make_optimizer(model)
    with session_of(setting):
        initialize(setting, model, optimizer, loss_scale=8.0)
        scheduler = SCHEDULERS["StepLR"](optimizer)
        train_step(model, optimizer, make_batch(setting))
        scheduler.step()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@each_setting
def test_stochastic_weight_averaging_takes_an_initialized_model(setting, session):
    averaging = pytest.importorskip("torch.optim.swa_utils", reason="this torch has no averaging")
    if setting.high is not torch.float32:
        pytest.skip("averages are float32, which is the low dtype here")
    (model, optimizer), batch = begin(setting, 0.1, momentum=0.5), make_batch(setting)
    average = averaging.AveragedModel(model)
    train_step(model, optimizer, batch)
    average.update_parameters(model)
    state = model.state_dict()
    assert all(torch.equal(param, state[name]) for name, param in average.module.named_parameters())
    assert all(param.dtype not in (torch.float16, torch.bfloat16) for param in average.module.parameters())
    assert average(batch[0]).dtype is model(batch[0]).dtype


@settings_at("O2", "O3", "O5")
def test_an_average_made_after_initialize_keeps_changes_that_half_weights_lose(setting, session):
    averaging = pytest.importorskip("torch.optim.swa_utils", reason="this torch has no averaging")
    model = torch.nn.Linear(2, 1, bias=False).to(setting.high)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    initialize(setting, model, optimizer, loss_scale=1.0)
    average = averaging.AveragedModel(model, avg_fn=lambda old, new, count: old + (new - old) * 2.0**-12)
    average.update_parameters(model)
    with torch.no_grad():
        model.weight.fill_(2.0)
    average.update_parameters(model)
    assert torch.equal(average.module.weight.detach(), torch.full((1, 2), 1 + 2.0**-12))


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_an_average_made_before_initialize_takes_in_the_float32_values(level):
    averaging = pytest.importorskip("torch.optim.swa_utils", reason="this torch has no averaging")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    average, expected = averaging.AveragedModel(model), torch.zeros(1, 2, dtype=torch.float64)
    before = averaging.AveragedModel.update_parameters
    with ampcompat.session(verbosity=0):
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=1.0)
        for inputs in torch.tensor([[[0.25, 0.5]], [[0.75, 2.0**-9]]]):
            loops.step(model(inputs).sum(), optimizer)
            average.update_parameters(model)
            expected += model.state_dict()["weight"].double() / 2
    assert torch.allclose(average.module.weight.double(), expected, atol=1e-7)
    assert average.module.weight.dtype is torch.float32
    assert averaging.AveragedModel.update_parameters is before


METHODS = ("step", "zero_grad", "add_param_group", "load_state_dict")


def signatures(optimizer):
    return {name: inspect.signature(getattr(optimizer, name)) for name in METHODS}


def positional(signature):
    return [name for name, each in signature.parameters.items() if each.kind == each.POSITIONAL_OR_KEYWORD]


@each_setting
@pytest.mark.parametrize("made", [None, "before", "after"])
def test_the_methods_have_the_signatures_of_the_optimizers_own(setting, made, session):
    model = make_network(setting)
    optimizer, plain = make_optimizer(model), make_optimizer(make_network())
    expected = signatures(plain)
    if made == "before":
        SCHEDULERS["StepLR"](optimizer)
        if "closure" not in signatures(optimizer)["step"].parameters:
            pytest.skip("schedulers of this torch hide the signature of step")
    initialize(setting, model, optimizer)
    if made == "after":
        SCHEDULERS["StepLR"](optimizer)  # whose own wrapper is not a method and shows ``self``, without amp too
        SCHEDULERS["StepLR"](plain)
        expected = signatures(plain)
    assert signatures(optimizer) == expected
    for name in METHODS:
        method, parameters = getattr(optimizer, name), positional(expected[name])
        own = inspect.getfullargspec(getattr(plain, name)).args
        assert inspect.getfullargspec(method).args in (own, ["self"] * (parameters[:1] != ["self"]) + parameters)
        if (made, name) != ("after", "step"):
            assert method.__self__ is optimizer and inspect.isfunction(method.__func__)
            assert method.__name__ == getattr(plain, name).__name__
