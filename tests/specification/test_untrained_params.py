"""Specification 3.2: params of an initialized model that no optimizer has get true gradients, too."""

import gc
import weakref

import pytest
import torch
from helpers import loops
from helpers.networks import initialize, settings_at
from helpers.pairing import paired

from ampcompat import amp
from ampcompat.engine.session.untrained_params import have_registration_hooks

LEVELS = ("O1", "O2", "O3", "O4", "O5")
#: Losses are multiplied by this, so that half gradients of a scale of 2**16 are in the range of half.
TINY = 2.0**-10
SCALES = [64.0, 1000.0, "dynamic"]


def make(setting, scale=64.0, **options):
    """Initialize a network whose last layer has an optimizer of its weight and one of its bias; return all."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(setting.high)
    optimizers = [torch.optim.SGD([param], lr=2.0**8) for param in model[2].parameters()]
    initialize(setting, model, optimizers, loss_scale=scale, **options)
    return model, optimizers


def loss_of(setting, model, seed=1, factor=TINY):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).to(setting.high)
    return model(x).to(setting.high).pow(2).mean() * factor


def backward(setting, model, optimizers, seed=1, **options):
    loops.backward(loss_of(setting, model, seed), optimizers, **options)


def expected(setting, model, *seeds):
    """Return the sum of the true gradients of the first layer's weight, without amp's scale."""
    weight = model[0].weight
    kept, weight.grad = weight.grad, None
    found = [torch.autograd.grad(loss_of(setting, model, seed), weight)[0].double() for seed in seeds]
    weight.grad = kept
    return sum(found)


def assert_true(setting, model, *seeds):
    gradient = model[0].weight.grad
    assert gradient.dtype is model[0].weight.dtype
    tolerance = 4 * len(seeds) * torch.finfo(setting.low).eps
    wanted = expected(setting, model, *seeds)
    assert (gradient.double() - wanted).abs().max() <= tolerance * wanted.abs().max() + 2.0**-24


@paired("setting, scale", [each for each in settings_at(*LEVELS).args[1]], SCALES)
def test_they_are_true_when_the_block_ends_and_add_up(setting, scale, session):
    model, optimizers = make(setting, scale)
    for seeds in ((1,), (1, 2), (1, 2, 3)):
        backward(setting, model, optimizers, seeds[-1])
        assert_true(setting, model, *seeds)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-30)
    assert norm < 1.0


@pytest.mark.parametrize("how", ["delayed", "checked later", "raising"])
@settings_at(*LEVELS)
def test_they_are_true_after_every_kind_of_block(setting, how, session):
    model, optimizers = make(setting)
    if how == "raising":
        with pytest.raises(ValueError, match="own"):
            with amp.scale_loss(loss_of(setting, model), optimizers) as scaled_loss:
                scaled_loss.backward()
                raise ValueError("own")
    else:
        options = {"delay_unscale": True} if how == "delayed" else {"delay_overflow_check": True}
        backward(setting, model, optimizers, **options)
    assert_true(setting, model, 1)
    backward(setting, model, optimizers, 2)
    assert_true(setting, model, 1, 2)


@pytest.mark.parametrize(
    "order, inner", [("ab", 0), ("ba", 0), ("b then a", 0), ("a then b", 0), ("b then a", 1), ("a then b", 1)]
)
@settings_at(*LEVELS)
def test_they_are_true_after_nested_blocks_of_one_optimizer_and_of_two_with_two_scales(setting, order, inner, session):
    model, optimizers = make(setting, num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 16.0
    backward(setting, model, optimizers, 3)
    with amp.scale_loss(loss_of(setting, model, 1), optimizers[0]) as a:
        if order == "a then b":
            a.backward()
        with amp.scale_loss(loss_of(setting, model, 2), optimizers[inner], loss_id=inner) as b:
            for each in order if len(order) == 2 else "b":
                {"a": a, "b": b}[each].backward()
        if order == "b then a":
            a.backward()
    assert_true(setting, model, 3, 1, 2)


@settings_at(*LEVELS)
def test_their_overflow_skips_no_step(setting, session):
    model, optimizers = make(setting, "dynamic")
    before = model[2].weight.detach().clone()
    with amp.scale_loss(loss_of(setting, model), optimizers) as scaled_loss:
        scaled_loss.backward()
        model[0].weight.grad.fill_(float("inf"))
    optimizers[0].step()
    assert not amp.step_was_skipped(optimizers[0]) and not torch.equal(model[2].weight, before)


@settings_at(*LEVELS)
def test_a_group_that_an_optimizer_gets_later_is_unscaled_once(setting, session):
    model, optimizers = make(setting)
    backward(setting, model, optimizers)
    model.zero_grad()
    optimizers[0].add_param_group({"params": list(model[0].parameters())})
    backward(setting, model, optimizers)
    assert_true(setting, model, 1)


@settings_at(*LEVELS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_those_whose_optimizer_was_freed_are_true_too(setting, set_to_none, session):
    model, optimizers = make(setting)
    first = torch.optim.SGD(model[0].parameters(), lr=1.0)
    backward(setting, model, optimizers + [first])
    for param in model.parameters():
        param.grad = None if set_to_none else param.grad.zero_()
    del first
    gc.collect()
    backward(setting, model, optimizers, seed=2)
    assert_true(setting, model, 2)


@settings_at("O1", "O2")
def test_layers_that_a_script_drops_are_freed_although_their_optimizer_lives(setting, session):
    model, optimizers = make(setting)
    backward(setting, model, optimizers)
    weights, last = weakref.ref(model[0].weight), model[2]
    del model
    loss = last(torch.ones(1, 4, dtype=last.weight.dtype)).to(setting.high).sum()
    loops.backward(loss, optimizers)
    gc.collect()
    assert weights() is None


@settings_at("O0", *LEVELS)
@pytest.mark.parametrize("value", [None, 0.0])
def test_params_that_come_to_an_optimizer_by_its_groups_are_unscaled_once_and_those_that_leave_it_too(
    setting, value, session
):
    model, optimizers = make(setting)
    (group,) = optimizers[0].param_groups
    before = group["params"]
    backward(setting, model, optimizers)
    assert_true(setting, model, 1)
    for params in (before + [model[0].weight], before):
        for param in model.parameters():
            param.grad = None if value is None else torch.full_like(param, value)
        group["params"] = params
        backward(setting, model, optimizers)
        assert_true(setting, model, 1)


@pytest.mark.parametrize("how", ["layer", "param"])
@settings_at(*LEVELS)
def test_those_of_a_layer_that_was_replaced_or_added_later_are_true_too(setting, how, session):
    if not have_registration_hooks():
        pytest.skip("this torch has no hooks on the registration of params")
    model, optimizers = make(setting)
    backward(setting, model, optimizers)
    dtype = model[0].weight.dtype
    if how == "layer":
        model[0] = torch.nn.Linear(4, 4).to(dtype)
    else:
        model[0].weight = torch.nn.Parameter(model[0].weight.detach().clone())
    params = list(model[0].parameters())
    for param in params:
        param.grad = None
    backward(setting, model, optimizers)
    expected = torch.autograd.grad(loss_of(setting, model), params)
    for param, wanted in zip(params, expected):
        difference = (param.grad.double() - wanted.double()).abs().max()
        assert difference <= 8 * torch.finfo(setting.low).eps * wanted.double().abs().max() + 2.0**-24
