"""``delay_unscale`` with several optimizers, losses and errors: sums are exact, overflows count where they are."""

import copy

import pytest
import torch
from helpers import loops
from helpers.networks import INPUT, Product, each_setting, initialize, settings_at

from ampcompat import amp

X = 2.0**-4


def begin(setting, optimizers=1, **options):
    model = Product(1.0).to(setting.high)
    made = [torch.optim.SGD(model.parameters(), lr=0.25) for _ in range(optimizers)]
    initialize(setting, model, made, **dict({"loss_scale": "dynamic"}, **options))
    return model, made


def backward(setting, model, optimizers, loss_id=0, factor=X, **options):
    loops.backward(factor * model(INPUT.to(setting.high)).float().sum(), optimizers, loss_id, **options)


def gradients(model, factor):
    expected = torch.autograd.grad(factor * model(INPUT.to(model.a.dtype)).sum(), list(model.parameters()))
    return [(param.grad, wanted) for param, wanted in zip(model.parameters(), expected)]


@settings_at("O0")  # gradients are exact, also those of scaled losses
@pytest.mark.parametrize("count, later", [(2, 0), (2, 1), (1, 0)], ids=["one loss", "two losses", "one of them"])
@pytest.mark.parametrize("order", [1, -1])
def test_shared_params_of_two_optimizers_get_the_sum(setting, count, later, order, session):
    model, optimizers = begin(setting, 2, num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 8.0
    backward(setting, model, optimizers[:count], delay_unscale=True)
    backward(setting, model, optimizers[::order], later)
    assert all(torch.equal(found, expected) for found, expected in gradients(model, 2 * X))


@each_setting
def test_what_the_optimizer_has_cleared_of_a_delayed_pass_leaves_no_scale_behind(setting, session):
    model, (optimizer,) = begin(setting)
    backward(setting, model, optimizer, delay_unscale=True)
    optimizer.zero_grad()
    (X * model(INPUT.to(setting.high)).float().sum()).backward()
    backward(setting, model, optimizer)
    a, b = [param.detach().double() for param in model.parameters()]
    for master, other in zip(amp.master_params(optimizer), (b, a)):
        assert torch.equal(master.grad.double(), 2 * X * INPUT.double() * other)


@each_setting
def test_an_overflow_of_a_delayed_loss_lowers_the_scale_of_that_loss(setting, capsys, loud):
    model, (optimizer,) = begin(setting, num_losses=2)
    before = [param.detach().clone() for param in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        backward(setting, model, optimizer, 0, float("inf"), delay_unscale=True)
        backward(setting, model, optimizer, 1)
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))
    scales = [state["loss_scale"] for state in amp.state_dict().values()]
    assert scales == [2.0**13, 2.0**16]
    assert capsys.readouterr().out.count("loss scaler 0 reducing") == 3


@each_setting
def test_an_overflow_of_a_delayed_pass_skips_the_step_after_an_error_in_the_next_pass(setting, session):
    model, (optimizer,) = begin(setting)
    before = [param.detach().clone() for param in model.parameters()]
    backward(setting, model, optimizer, 0, float("inf"), delay_unscale=True)
    with pytest.raises(ZeroDivisionError):
        with amp.scale_loss(model(INPUT.to(setting.high)).float().sum(), optimizer):
            raise ZeroDivisionError
    optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15


@each_setting
def test_an_overflow_of_a_copied_optimizer_after_a_delayed_pass_lowers_the_scale(setting, session):
    model, (optimizer,) = begin(setting)
    backward(setting, model, optimizer, delay_unscale=True)
    (scaler,) = amp._amp_state.loss_scalers  # it belongs to the session
    scaler.__deepcopy__ = lambda memo: pytest.fail("the loss scaler was copied with the optimizer")
    twin_model, twin = copy.deepcopy((model, optimizer))  # torch copies no gradients
    backward(setting, twin_model, twin, factor=float("inf"))
    twin.step()
    assert amp.step_was_skipped(twin)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15


@settings_at("O2", "O5")
def test_at_a_scale_of_1_the_gradient_of_a_delayed_pass_is_read_with_that_of_the_pass_before(setting, session):
    model = torch.nn.Linear(2, 1, bias=False).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    initialize(setting, model, optimizer, loss_scale=1.0)
    for is_delayed in (False, True):
        loops.backward(model(torch.ones(1, 2)).sum(), optimizer, delay_unscale=is_delayed)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]
    model.weight.grad.mul_(2.0)
    before = model.weight.detach().clone()
    optimizer.step()
    assert (before - model.weight).detach()[0].tolist() == pytest.approx(
        [2.0, 2.0], rel=2 * torch.finfo(setting.low).eps
    )


@settings_at("O0", "O1", "O2", "O5", stored=True)
def test_a_gradient_that_was_read_before_a_delayed_pass_can_be_changed_after_it(setting, session):
    model = torch.nn.ModuleList([Product(1.0).to(setting.high) for _ in range(3)])
    first, second = (torch.optim.SGD(list(each.parameters()), lr=1.0) for each in (model[::2], model[1:2]))
    initialize(setting, model, [first, second], loss_scale=1.0)
    backward(setting, lambda x: model[1](x) + model[2](x), second)
    before = [param.grad.clone() for param in model[2].parameters()]
    backward(setting, model[0], first, delay_unscale=True)
    for param in model[2].parameters():
        param.grad.mul_(0.5)
    weights = [param.detach().double().clone() for param in model[2].parameters()]
    backward(setting, model[0], first)
    first.step()
    for param, weight, gradient in zip(model[2].parameters(), weights, before):
        assert torch.equal(param.detach(), (weight - 0.5 * gradient.double()).to(param.dtype))
