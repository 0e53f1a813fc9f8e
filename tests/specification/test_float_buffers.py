"""Specification 2.3: float buffers of a half model keep their float32 values beside them."""

import copy

import pytest
import torch
from helpers.copies import saved_and_loaded
from helpers.networks import initialize, session_of, settings_at

from ampcompat import amp
from ampcompat.support.torch_compat import features

EXACT = 0.1  # no half number
#: torch before 1.6 saves every buffer.
NOT_SAVED = {"persistent": False} if features.is_version_within(oldest="1.6") else {}


class Rotary(torch.nn.Module):
    """A layer with a buffer that is saved, one that is not, and one whose values half numbers can hold."""

    def __init__(self, dtype):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2).to(dtype)
        self.register_buffer("saved", torch.tensor([1.0, EXACT], dtype=dtype))
        self.register_buffer("mask", torch.tensor([1.0, 0.0], dtype=dtype))
        self.register_buffer("inv_freq", torch.tensor([1.0, EXACT], dtype=dtype), **NOT_SAVED)

    def forward(self, x):
        return self.linear(x) * self.inv_freq * self.saved


def prepared(setting, **options):
    """Return an initialized model, in a list, and what its buffers were."""
    model = torch.nn.Sequential(Rotary(setting.high))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.5), **options)
    return model, before


@settings_at("O2", "O3", "O5")
def test_buffers_that_nobody_changed_are_saved_in_float32_and_are_so_again_when_the_session_ends(setting):
    with session_of(setting):
        model, before = prepared(setting)
        assert torch.equal(model[0].inv_freq, before["0.inv_freq"].to(setting.low))
        assert torch.equal(model.state_dict()["0.saved"], before["0.saved"])
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert set(vars(model[0])) == set(vars(Rotary(setting.high)))


@pytest.mark.parametrize("write", ["in place", "another tensor", "another shape"])
@settings_at("O2", "O3", "O5")
def test_elements_that_a_script_writes_are_saved_and_restored_as_written(setting, write):
    with session_of(setting):
        model, _ = prepared(setting)
        expected = torch.tensor([0.25, EXACT], dtype=setting.high)
        if write == "in place":
            model[0].saved[0] = 0.25
        elif write == "another tensor":
            model[0].saved = expected.to(setting.low)
        else:
            model[0].saved = torch.tensor([EXACT] * 3, dtype=setting.low)
            expected = model[0].saved.to(setting.high)
        assert torch.equal(model.state_dict()["0.saved"], expected)
    assert torch.equal(model[0].saved, expected)


@settings_at("O2", "O3", "O5")
def test_buffers_that_are_loaded_are_saved_and_restored_as_they_were_loaded(setting):
    loaded = {"0.saved": torch.tensor([0.7, 0.3]).to(setting.high), "0.mask": torch.tensor([0.3, 0.0]).to(setting.high)}
    with session_of(setting):
        model, _ = prepared(setting)
        model.load_state_dict(dict(model.state_dict(), **loaded))
        state = model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in loaded.items())
        loaded["0.saved"].zero_()  # the script may write to what it has loaded
        assert state["0.saved"][0] == model.state_dict()["0.saved"][0]
    assert torch.equal(model[0].mask, loaded["0.mask"])


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code:UserWarning")  # torch before 1.6, pickling a class
@pytest.mark.parametrize("duplicate", [copy.deepcopy, saved_and_loaded])
@settings_at("O2", "O3", "O5")
def test_copies_of_a_model_save_their_buffers_in_float32(setting, duplicate, session):
    model, before = prepared(setting)
    twin = duplicate(model)
    assert torch.equal(twin.state_dict()["0.saved"], before["0.saved"])
    other = torch.tensor([0.7, 0.3], dtype=setting.high)
    twin.load_state_dict(dict(twin.state_dict(), **{"0.saved": other}))
    assert torch.equal(twin.state_dict()["0.saved"], other)
    assert torch.equal(model.state_dict()["0.saved"], before["0.saved"])


@settings_at("O2", "O3", "O5")
def test_modules_that_share_a_buffer_share_its_float32_values(setting):
    with session_of(setting):
        model, other = torch.nn.Sequential(Rotary(setting.high)), Rotary(setting.high)
        other.saved = model[0].saved
        model.add_module("other", other)
        expected = other.saved.clone()
        initialize(setting, model)
        state = model.state_dict()
        assert torch.equal(state["0.saved"], expected) and torch.equal(state["other.saved"], expected)
        model.to("cpu", torch.float64)  # each module has a buffer of its own now
        model.to(setting.low)
    assert torch.equal(model[0].saved, expected) and torch.equal(other.saved, expected)


@settings_at("O2", "O5")
def test_a_grown_models_buffers_are_kept_too(setting):
    with session_of(setting):
        model, before = prepared(setting)
        model.add_module("head", Rotary(setting.high))
        amp.initialize(model, opt_level=setting.level)
        assert torch.equal(model.state_dict()["head.saved"], before["0.saved"])
    assert torch.equal(model.head.inv_freq, before["0.inv_freq"])
