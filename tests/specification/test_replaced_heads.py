"""A second ``initialize`` after a layer of the model was replaced: the new layer joins at the level of the others."""

import gc

import pytest
import torch
from helpers.networks import (
    begin,
    differing,
    each_setting,
    each_setting_and_stored,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
)

import ampcompat
from ampcompat import amp

cast_weights = settings_at("O2", "O3", "O5", stored=True)
with_masters = settings_at("O2", "O5", stored=True)


def sgd(params, rate=2.0**-4):
    return torch.optim.SGD(params, lr=rate, momentum=0.5)


def new_head(setting, classes=3):
    torch.manual_seed(5)
    layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, classes)
    return torch.nn.Sequential(*layers).to(setting.high)


def trained_once(setting):
    model, optimizer = begin(setting, 2.0**-4, momentum=0.5)
    train_step(model, optimizer, make_batch(setting))
    return model, optimizer


@each_setting_and_stored
@pytest.mark.parametrize("how", ["a new optimizer", "add_param_group before", "add_param_group after"])
def test_a_new_head_joins(setting, how):
    with session_of(setting):
        model, first = trained_once(setting)
        model[3] = new_head(setting)
        head = {name: value.clone() for name, value in model[3].state_dict().items()}
        optimizer = sgd(model.parameters()) if how == "a new optimizer" else first
        if how == "add_param_group before":
            optimizer.add_param_group({"params": model[3].parameters()})
        initialize(setting, model, optimizer, loss_scale=8.0)
        if how == "add_param_group after":
            optimizer.add_param_group({"params": model[3].parameters()})

        low = setting.low if setting.casts_weights else setting.high
        norms = setting.low if setting.level == "O3" else setting.high
        assert [param.dtype for param in model[3].parameters()] == [low, low, norms, norms, low, low]
        wide = setting.high if setting.has_masters or not setting.casts_weights else setting.low
        held = [param for group in optimizer.param_groups for param in group["params"]]
        assert {param.dtype for param in held} <= {wide, norms}
        if how != "add_param_group after" and setting.level != "O3":
            assert differing(head, model[3].state_dict()) == [], "to the last bit, by way of the masters"
        before = {name: value.clone() for name, value in model[3].state_dict().items()}
        losses = [train_step(model, optimizer, make_batch(setting)) for _ in range(10)]
        assert losses[-1] < losses[0]
        assert [name for name in differing(before, model[3].state_dict()) if "weight" in name] == [
            "0.weight",
            "1.weight",
            "2.weight",
        ]
        assert all(value.dtype in (setting.high, torch.int64) for value in model.state_dict().values())
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        ampcompat.reset()
    assert differing(trained, model.state_dict()) == []
    assert {param.dtype for param in model.parameters()} == {setting.high}
    model(make_batch(setting)[0]).sum().backward()


@with_masters
@pytest.mark.parametrize("is_added_before", [True, False])
def test_a_head_that_was_not_trained_has_its_float32_values_after_closing(setting, is_added_before):
    with session_of(setting):
        model, optimizer = trained_once(setting)
        model[3] = new_head(setting)
        head = {name: value.clone() for name, value in model[3].state_dict().items()}
        if is_added_before:
            optimizer.add_param_group({"params": model[3].parameters()})
        initialize(setting, model, optimizer, loss_scale=8.0)
        if not is_added_before:
            head = {name: value.clone() for name, value in model[3].state_dict().items()}
            optimizer.add_param_group({"params": model[3].parameters()})
    assert differing(head, model[3].state_dict()) == []


@with_masters
def test_it_trains_as_a_model_that_had_the_head_from_the_beginning(setting):
    def trained(again):
        model = make_network(setting)
        if not again:
            model[3] = new_head(setting)
        optimizer = sgd(model.parameters())
        initialize(setting, model, optimizer, loss_scale=8.0)
        if again:
            model[3] = new_head(setting)
            optimizer = sgd(model.parameters())
            gc.collect()  # the first optimizer is freed now or later; its masters' values are kept in either case
            initialize(setting, model, optimizer, loss_scale=8.0)
        for _ in range(4):
            train_step(model, optimizer, make_batch(setting))
        found = {name: value.clone() for name, value in model.state_dict().items()}
        ampcompat.reset()
        return found

    with session_of(setting):
        first = trained(True)
    with session_of(setting):
        assert differing(first, trained(False)) == []


@cast_weights
def test_a_param_that_was_replaced_in_a_known_layer_joins(setting, session):
    model, _ = trained_once(setting)
    model[3].weight = torch.nn.Parameter(torch.randn(3, 8, dtype=setting.high))
    optimizer = sgd(model.parameters())
    initialize(setting, model, optimizer, loss_scale=8.0)
    assert model[3].weight.dtype is setting.low
    losses = [train_step(model, optimizer, make_batch(setting)) for _ in range(10)]
    assert losses[-1] < losses[0]


@cast_weights
def test_keep_fp32_holds_for_the_new_head_and_still_for_the_old_layers(setting, session):
    model = make_network(setting)
    keep = {"keep_fp32": [torch.nn.Linear]}
    initialize(setting, model, loss_scale=8.0, **keep)
    model[3] = new_head(setting)
    optimizer = sgd(model.parameters())
    initialize(setting, model, optimizer, loss_scale=8.0, **keep)
    assert model[3][0].weight.dtype is setting.high and model[0].weight.dtype is setting.high
    losses = [train_step(model, optimizer, make_batch(setting)) for _ in range(10)]
    assert losses[-1] < losses[0]


@cast_weights
def test_an_unchanged_model_again_without_the_keywords_changes_nothing(setting, session):
    model, optimizer = begin(setting, 2.0**-4, momentum=0.5, keep_fp32=["3"])
    model[0].float()
    dtypes = [param.dtype for param in model.parameters()]
    initialize(setting, model, optimizer, loss_scale=8.0)
    assert [param.dtype for param in model.parameters()] == dtypes


@cast_weights
def test_the_scale_goes_on_for_an_optimizer_that_goes_on(setting, session):
    model, optimizer = trained_once(setting)
    model[3] = new_head(setting)
    optimizer.add_param_group({"params": model[3].parameters()})
    before = amp.state_dict()
    initialize(setting, model, optimizer, loss_scale=8.0)
    assert amp.state_dict() == before and before["loss_scaler0"]["unskipped"] == 1


@settings_at("O2", "O3", "O5")
def test_an_initialize_that_fails_leaves_the_new_head_as_it_was(setting, session):
    model, optimizer = trained_once(setting)
    model[3] = new_head(setting)
    optimizer.add_param_group({"params": model[3].parameters()})
    train = sgd(make_network(setting).parameters())
    del train.param_groups[0]["params"]
    dtypes = [param.dtype for param in model.parameters()]
    held = [param for group in optimizer.param_groups for param in group["params"]]
    with pytest.raises(KeyError):
        initialize(setting, model, [optimizer, train], loss_scale=8.0)
    assert [param.dtype for param in model.parameters()] == dtypes
    now = [param for group in optimizer.param_groups for param in group["params"]]
    assert len(now) == len(held) and all(map(lambda a, b: a is b, now, held))
    initialize(setting, model, optimizer, loss_scale=8.0)
    train_step(model, optimizer, make_batch(setting))


@each_setting
def test_an_optimizer_with_params_that_no_model_has_may_come_again(setting, session):
    model = make_network(setting)
    center = torch.nn.Parameter(torch.zeros(3, dtype=setting.high))  # of a loss, say
    optimizer = sgd(list(model.parameters()) + [center])
    initialize(setting, model, optimizer, loss_scale=8.0)
    initialize(setting, model, optimizer, loss_scale=8.0)
    train_step(model, optimizer, make_batch(setting))


@cast_weights
def test_params_of_a_parametrization_that_was_added_later_are_saved_in_float32(setting, session):
    if not hasattr(torch.nn.utils, "parametrize"):
        pytest.skip("this torch has no parametrizations")
    model, optimizer = trained_once(setting)
    expected = model.state_dict()["3.weight"].clone()
    torch.nn.utils.parametrize.register_parametrization(model[3], "weight", torch.nn.Identity())
    state = model.state_dict()
    assert all([value.dtype is setting.high for value in state.values() if value.is_floating_point()])
    assert torch.equal(state["3.parametrizations.weight.original"], expected), "with the bits of the master"
