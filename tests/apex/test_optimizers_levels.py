"""The optimizers of apex.optimizers through ``amp.initialize`` at every level."""

import copy
import functools

import pytest
import torch
from helpers import loops, precision
from optimizer_cases import PLAIN, Reference, made

from ampcompat import amp

IDS = [case[0].__name__ for case in PLAIN]


def prepared(make, level, loss_scale=128.0):
    """Return an initialized model and its optimizer, which ``make`` makes of a list of params."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return amp.initialize(model, make(list(model.parameters())), opt_level=level, verbosity=0, loss_scale=loss_scale)


def loss_of(model, step):
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).device)
    return (model(inputs).float().squeeze(1) - inputs[:, 0]).pow(2).mean()


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loops.step(loss_of(model, step), optimizer)


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_a_resumed_run_equals_one_that_went_on(level, make, formula, options):
    model, optimizer = prepared(functools.partial(make, lr=0.05), level)
    train(model, optimizer, range(3))
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    train(model, optimizer, range(3, 6))
    right = [param.detach().clone() for param in amp.master_params(optimizer)]
    model, optimizer = prepared(functools.partial(make, lr=0.05), level)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    train(model, optimizer, range(3, 6))
    assert all(torch.equal(param.detach(), each) for param, each in zip(amp.master_params(optimizer), right))


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_groups_and_decay_follow_the_formula_at_every_level(level, make, formula, options):
    model, optimizer = prepared(functools.partial(made, make, options), level, loss_scale=8.0)
    reference = Reference(formula, optimizer, options)
    low = {param.dtype for param in amp.master_params(optimizer)} & {precision.low_of(level)} - {torch.float32}
    for step in range(3):
        optimizer.zero_grad()
        loops.backward(loss_of(model, step), optimizer)
        reference.step(optimizer, *low)
        optimizer.step()
        for param, right in zip(amp.master_params(optimizer), reference.weights):
            tolerance = torch.finfo(param.dtype).eps * (1 if low else 64)
            assert (param.detach().double() - right).abs().max() <= tolerance * max(1.0, float(right.abs().max()))
            right.copy_(param.detach().double())
