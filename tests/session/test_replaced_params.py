"""A model that gets new params after its optimizer was made trains nothing: an error says so before the first step."""

import copy

import pytest
import torch
from helpers import loops
from helpers.networks import initialize, session_of, settings_at

from ampcompat.errors import AmpError

every_level = settings_at("O0", "O1", "O2", "O3", "O4", "O5")


@pytest.fixture
def moves_make_new_params():
    """Let ``model.to`` make new params, as it does where the new device's tensors are of another type (xla, meta)."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.fixture
def training(setting):
    """A model and its optimizer, initialized at a setting's level."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with session_of(setting):
        yield initialize(setting, model, optimizer, loss_scale=8.0)


def step(model, optimizer):
    optimizer.zero_grad()
    loops.step(model(torch.ones(2, 4)).float().sum(), optimizer)


@every_level
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_model_that_was_moved_by_making_new_params_is_an_error(training, steps_before, moves_make_new_params):
    model, optimizer = training
    for _ in range(steps_before):
        step(model, optimizer)
    model.to("cpu")
    for _ in range(2):
        with pytest.raises(AmpError, match=r"SGD would train nothing.*make the optimizer"):
            step(model, optimizer)


@every_level
def test_a_model_that_was_loaded_by_assigning_new_params_is_an_error(training):
    model, optimizer = training
    try:
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    except TypeError:
        pytest.skip("this torch assigns no params")
    with pytest.raises(AmpError, match="would train nothing"):
        step(model, optimizer)


@every_level
def test_a_model_with_a_new_layer_trains_the_others(training):
    model, optimizer = training
    dtype = model[0].weight.dtype
    model[0] = torch.nn.Linear(4, 3).to(dtype)
    before = model[1].weight.detach().clone()
    step(model, optimizer)
    assert not torch.equal(model[1].weight, before)


@every_level
@pytest.mark.parametrize("is_new", [True, False], ids=["a new optimizer", "the same optimizer"])
def test_an_optimizer_that_has_the_new_params_trains_them(training, is_new, moves_make_new_params):
    model, optimizer = training
    model.to("cpu")
    if is_new:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    else:
        optimizer.param_groups[0]["params"] = list(model.parameters())
    before = model[0].weight.detach().clone()
    step(model, optimizer)
    assert not torch.equal(model[0].weight, before)


@settings_at("O0", "O1", "O4")
def test_params_under_other_names_are_still_those_of_the_optimizer(training):
    if not hasattr(torch.nn.utils, "parametrize"):
        pytest.skip("this torch has no parametrizations")
    model, optimizer = training
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", torch.nn.Tanh())
    original = model[0].parametrizations.weight.original
    before = original.detach().clone()
    step(model, optimizer)
    assert not torch.equal(original, before)


@every_level
def test_fast_weights_that_were_computed_from_the_params_train_them(training):
    model, optimizer = training
    params = [(module, name, param) for module in model for name, param in module.named_parameters()]
    before = model[0].weight.detach().clone()
    for module, name, param in params:
        delattr(module, name)
        setattr(module, name, param * 0.5)
    loops.backward(model(torch.ones(2, 4)).float().sum(), optimizer)
    for module, name, param in params:
        delattr(module, name)
        module.register_parameter(name, param)
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
