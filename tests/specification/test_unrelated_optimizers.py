"""Specification 7.11: ``scale_loss`` gets an optimizer that ``initialize`` did not: one that trains, or a mistake."""

import warnings

import pytest
import torch
from helpers import loops
from helpers.networks import each_setting, holds_nonzero, initialize, make_batch, make_network, session_of


def sgd(params, **options):
    return torch.optim.SGD(params, lr=0.5, **options)


def iterate(loss, optimizer):
    loops.backward(loss, optimizer)
    (optimizer[0] if isinstance(optimizer, list) else optimizer).step()


@each_setting
@pytest.mark.parametrize("verbosity", [0, 1])
@pytest.mark.parametrize("made_for", ["another model", "the model before it was replaced"])
def test_an_optimizer_that_has_nothing_to_do_with_the_loss_does_not_go_unnoticed(setting, verbosity, made_for, capfd):
    with session_of(setting, verbosity=verbosity):
        model, batch = make_network(setting), make_batch(setting)
        before = make_network(setting) if made_for == "another model" else model
        optimizer = sgd(before.parameters())
        model = model if before is not model else make_network(setting, seed=2)
        initialize(setting, model)
        capfd.readouterr()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                iterate(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]), optimizer)
            except RuntimeError as error:
                said = str(error)
            else:
                said = "".join(capfd.readouterr()) + "".join(str(each.message) for each in warned)
        assert "SGD" in said and "amp.initialize" in said, "not silenced by verbosity=0"


@each_setting
@pytest.mark.parametrize("verbosity", [0, 1])
def test_an_optimizer_without_gradients_beside_one_with_them_is_no_mistake(setting, verbosity, capfd):
    with session_of(setting, verbosity=verbosity):
        models, batch = [make_network(setting, seed=seed) for seed in (0, 1)], make_batch(setting)
        optimizers = [sgd(model.parameters()) for model in models]
        initialize(setting, models, optimizers)
        capfd.readouterr()
        iterate(torch.nn.functional.cross_entropy(models[0](batch[0]), batch[1]), optimizers)
        assert "".join(capfd.readouterr()) == ""


@each_setting
def test_an_optimizer_of_params_outside_of_any_model_trains_them(setting, session):
    model, batch = make_network(setting), make_batch(setting)
    initialize(setting, model, loss_scale=8.0)
    temperature = torch.nn.Parameter(torch.ones((), dtype=setting.high))
    optimizer = sgd([temperature])
    loss = torch.nn.functional.cross_entropy(model(batch[0]).to(setting.high) * temperature, batch[1])
    (expected,) = torch.autograd.grad(loss, [temperature], retain_graph=True)
    iterate(loss, optimizer)
    assert holds_nonzero(expected)
    assert torch.allclose(temperature.detach().double(), 1.0 - 0.5 * expected.double(), rtol=1e-3)
