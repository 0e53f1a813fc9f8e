"""Specification 7.4 and 7.5: resumed training equals uninterrupted training bitwise; state dicts keep ties."""

import inspect

import torch
from helpers.networks import (
    begin,
    each_setting,
    initialize,
    settings_at,
    train_step,
)

from ampcompat import amp


@settings_at("O2", "O5")
def test_a_part_of_a_model_can_be_loaded(setting, session):
    model, optimizer = begin(setting)
    masters = list(amp.master_params(optimizer))
    others = [master.detach().clone() for master in masters[2:]]
    model[0].load_state_dict({"weight": torch.full((8, 6), 0.1), "bias": torch.zeros(8)})
    assert torch.equal(masters[0].detach(), torch.full((8, 6), 0.1).to(setting.high))
    model.load_state_dict({"3.bias": torch.ones(3)}, strict=False)
    assert torch.equal(masters[5].detach(), torch.ones(3, dtype=setting.high))
    assert all(torch.equal(a, b.detach()) for a, b in zip(others[:3], masters[2:5]))


# -- what state dicts hold ---------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """Two names for one weight, an extra entry in the state dict, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.other = torch.nn.Linear(4, 4)
        if "persistent" in inspect.signature(self.register_buffer).parameters:  # torch 1.6 and later
            self.register_buffer("mask", torch.ones(2), persistent=False)
        self.word = "first"

    def get_extra_state(self):
        return {"word": self.word}

    def set_extra_state(self, state):
        self.word = state["word"]

    def forward(self, ids):
        return self.head(self.other(self.embed(ids)))


@each_setting
def test_ties_and_extra_state_are_kept(setting, session):
    model = Tied().to(setting.high)
    keys = list(model.state_dict())
    initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.05))
    saved = model.state_dict()
    assert list(saved) == keys and "mask" not in saved
    assert saved["embed.weight"].data_ptr() == saved["head.weight"].data_ptr()
    assert saved["embed.weight"].data_ptr() != saved["other.weight"].data_ptr()
    if hasattr(torch.nn.Module, "get_extra_state"):  # torch 1.10 and later
        assert saved["_extra_state"] == {"word": "first"}
        saved["_extra_state"] = {"word": "second"}
        model.load_state_dict(saved)
        assert model.word == "second"


@each_setting
def test_tied_weights_train_and_stay_tied(setting, session):
    model = Tied().to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer, loss_scale=8.0)
    batch = torch.arange(5), torch.arange(5).flip(0)
    losses = [train_step(model, optimizer, batch) for _ in range(10)]
    assert losses[-1] < losses[0] and model.head.weight is model.embed.weight


@each_setting
def test_weights_that_happen_to_be_equal_are_not_tied(setting, session):
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]).to(setting.high)
    model[1].load_state_dict(model[0].state_dict())
    initialize(setting, model)
    saved = model.state_dict()
    assert saved["0.weight"].data_ptr() != saved["1.weight"].data_ptr()


@settings_at("O2", "O3", "O5")
def test_the_hook_has_the_name_that_torchs_onnx_exporter_looks_for(setting, session):
    model, _ = begin(setting)
    assert "O2StateDictHook" in [type(hook).__name__ for hook in model._state_dict_hooks.values()]


@settings_at("O2", "O5")
def test_a_state_dict_into_a_given_destination_with_a_prefix_is_float32(setting, session):
    model, _ = begin(setting)
    found = model.state_dict(prefix="net.")
    assert all(key.startswith("net.") for key in found)
    assert {value.dtype for value in found.values() if value.is_floating_point()} == {setting.high}
    assert {v.dtype for v in model[0].state_dict().values()} == {setting.high}
