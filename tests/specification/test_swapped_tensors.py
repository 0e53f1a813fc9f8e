"""Params whose tensors torch exchanges in place: ``swap_tensors``, and ``load_state_dict`` where it swaps."""

import copy
import gc

import pytest
import torch
from helpers.networks import (
    begin,
    differing,
    each_setting,
    make_batch,
    make_network,
    train_step,
    weights_of,
)

from ampcompat import amp

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils, "swap_tensors") or not hasattr(torch, "__future__"),
    reason="this torch swaps no tensors",
)


@pytest.fixture
def loading_swaps():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def state_of(model, optimizer):
    masters = {f"master {i}": each.detach().clone() for i, each in enumerate(amp.master_params(optimizer))}
    return dict(weights_of(model), **masters)


def train(model, optimizer, batch, steps=2):
    for _ in range(steps):
        train_step(model, optimizer, batch)
    optimizer.zero_grad()
    gc.collect()  # torch refuses to swap params that an autograd graph still refers to


@each_setting
@pytest.mark.parametrize("steps_before", [0, 2])
def test_load_state_dict_that_swaps_loads_and_training_goes_on_as_where_it_copies(
    setting, steps_before, loading_swaps, session
):
    batch = make_batch(setting)
    other = {name: value * 0.5 for name, value in make_network(setting, seed=3).state_dict().items()}

    def trained(swaps):
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        model, optimizer = begin(setting, momentum=0.5)
        train(model, optimizer, batch, steps_before)
        model.load_state_dict(copy.deepcopy(other))
        loaded = state_of(model, optimizer)
        train(model, optimizer, batch)
        return loaded, state_of(model, optimizer)

    (copied, expected), (swapped, found) = trained(False), trained(True)
    assert differing(copied, swapped) == differing(expected, found) == []


@each_setting
@pytest.mark.parametrize("steps_before", [0, 2])
def test_swapped_tensors_are_trained_as_those_whose_values_are_exchanged(setting, steps_before, session):
    batch = make_batch(setting)

    def trained(exchange):
        model, optimizer = begin(setting, momentum=0.5)
        train(model, optimizer, batch, steps_before)
        with torch.no_grad():
            exchange(model[3].weight)
        train(model, optimizer, batch)
        return weights_of(model)

    def swap(weight):
        torch.utils.swap_tensors(weight, torch.nn.Parameter(weight.detach().clone().fill_(0.25)))

    def fill(weight):
        weight.fill_(0.25)

    assert differing(trained(fill), trained(swap)) == []


@each_setting
def test_conversions_of_a_model_that_swap_leave_what_is_trained_right(setting, loading_swaps, session):
    batch = make_batch(setting)
    model, optimizer = begin(setting, momentum=0.5)
    train(model, optimizer, batch)
    twin, twin_optimizer = begin(setting, momentum=0.5)
    train(twin, twin_optimizer, batch)
    model._apply(torch.clone)  # what ``to``, ``cuda`` and the like do
    for each in ((model, optimizer), (twin, twin_optimizer)):
        train(*each, batch)
    assert differing(state_of(model, optimizer), state_of(twin, twin_optimizer)) == []
