"""Specification 7.11: param groups that are added after ``initialize`` are treated as those that were there."""

import pytest
import torch
from helpers import loops
from helpers.networks import INPUT, Product, initialize, session_of, settings_at

from ampcompat import amp

with_masters = settings_at("O2", "O5", stored=True)


def tiny(setting):
    """Return a number too small to change a 1 in the low dtype."""
    return torch.finfo(setting.low).eps / 8


def begin(setting, rate=0.25):
    """Return two models in one, the optimizer of the first, to which the params of the second are added."""
    model = torch.nn.ModuleList([Product(1.0), Product(1.0)]).to(setting.high)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=rate)
    initialize(setting, model, optimizer, loss_scale=128.0)
    optimizer.add_param_group({"params": list(model[1].parameters()), "lr": rate * tiny(setting)})
    return model, optimizer


def step(setting, model, optimizer):
    loss = sum(each(INPUT.to(setting.high).to(each.a.dtype)).float().sum() for each in model)
    loops.step(loss, optimizer)
    optimizer.zero_grad()


@with_masters
def test_checkpoints_save_and_load_the_masters_of_an_added_group(setting, session):
    model, optimizer = begin(setting)
    step(setting, model, optimizer)
    masters = list(amp.master_params(optimizer))
    saved = model.state_dict()
    assert not torch.equal(masters[-1], model[1].b.to(setting.high))  # it has bits that the half param lacks
    for name, master in zip(saved, masters):
        assert torch.equal(saved[name], master)
    model.load_state_dict({name: value + tiny(setting) for name, value in saved.items()})
    for name, master in zip(saved, masters):
        assert torch.equal(saved[name] + tiny(setting), master)


@with_masters
def test_what_is_written_to_a_param_of_an_added_group_stays(setting, session):
    write_and_step(setting)


@with_masters
@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_what_is_written_stays_under_a_default_device(setting):
    with session_of(setting), torch.device("cpu"):  # a function mode
        write_and_step(setting)


def write_and_step(setting):
    model = torch.nn.ModuleList([torch.nn.BatchNorm1d(2), Product(1.0)]).to(setting.high)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.0)  # none of these params has a master
    initialize(setting, model, optimizer, loss_scale=128.0)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    step(setting, model[1:], optimizer)
    model[1].b.data.fill_(3.0)
    step(setting, model[1:], optimizer)
    assert model[1].b.tolist() == [3.0, 3.0]


@with_masters
def test_a_param_that_another_optimizer_has_stepped_on_keeps_its_master_value(setting, session):
    model, optimizer = begin(setting)
    step(setting, model, optimizer)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1, dtype=setting.high))], lr=0.25)
    loops.backward(other.param_groups[0]["params"][0].sum(), other)
    other.add_param_group({"params": [model[1].b]})
    assert torch.equal(other.param_groups[1]["params"][0], optimizer.param_groups[1]["params"][-1])


@with_masters
@pytest.mark.parametrize("scale", [1024.0, "dynamic"])
def test_a_param_put_in_the_place_of_another_is_unscaled_and_checked(setting, scale, session):
    model = torch.nn.ModuleList([Product(1.0), Product(1.0)]).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer, loss_scale=scale)
    new = torch.nn.Parameter(torch.ones(2, dtype=setting.high))
    optimizer.param_groups[0]["params"][-1] = new
    loops.backward((new * 3.0).sum(), optimizer)
    assert new.grad.tolist() == [3.0, 3.0]
    optimizer.step()
    assert new.tolist() == [0.25, 0.25]


@settings_at("O0", "O1", "O2", "O3", "O5", stored=True)
@pytest.mark.parametrize("replace", ["clear", "assign", "pop"])
def test_groups_that_are_taken_out_can_be_added_again(setting, replace, session):
    def trained(rebuilds):
        model = torch.nn.ModuleList([Product(1.0), Product(1.5)]).to(setting.high)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        initialize(setting, model, optimizer, loss_scale=128.0)
        step(setting, model, optimizer)
        if rebuilds:
            take_out(optimizer, replace)
            for each in model:
                optimizer.add_param_group({"params": list(each.parameters()), "lr": 0.25})
        masters = []
        for _ in range(2):
            step(setting, model, optimizer)
            masters.append([param.detach().clone() for param in amp.master_params(optimizer)])
        return masters, [param.detach().clone() for param in model.parameters()]

    (masters, weights), (found_masters, found) = trained(False), trained(True)
    assert all(map(torch.equal, found, weights))
    for some, others in zip(masters, found_masters):
        assert len(some) == len(others) == 4 and all(map(torch.equal, some, others))


def take_out(optimizer, how):
    """Take all groups out of an optimizer."""
    if how == "clear":
        optimizer.param_groups.clear()
    elif how == "assign":
        optimizer.param_groups = []
    else:
        while optimizer.param_groups:
            optimizer.param_groups.pop()


@settings_at("O2", "O5")
def test_a_param_that_is_in_the_optimizer_is_still_refused_as_torch_does(setting, session):
    model, optimizer = begin(setting)
    for param in (model[0].a, next(iter(amp.master_params(optimizer)))):
        with pytest.raises((ValueError, RuntimeError), match="more than one parameter group|in the optimizer"):
            optimizer.add_param_group({"params": [param]})
    step(setting, model, optimizer)
