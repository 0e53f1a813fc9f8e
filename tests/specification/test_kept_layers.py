"""Specification 7.12: ``keep_fp32`` keeps layers in float32, weights and arithmetic, at every level."""

import pytest
import torch
from helpers.networks import each_setting, initialize, make_batch, session_of, settings_at, train_step

from ampcompat import amp


class Probe(torch.nn.Linear):
    """A linear layer that records the dtypes of its input and of a product that it makes."""

    def forward(self, x):
        self.saw = x.dtype
        self.computed = torch.mm(x, self.weight.t()).dtype
        return super().forward(x)


def make_model(setting):
    torch.manual_seed(0)
    block = torch.nn.Sequential(Probe(6, 6), torch.nn.ReLU())
    return torch.nn.Sequential(Probe(6, 6), block, Probe(6, 3)).to(setting.high)


ENTRIES = {
    "name": lambda model: "1.0",
    "pattern": lambda model: ["1*"],
    "module": lambda model: [model[1]],
    "inner module": lambda model: model[1][0],
    "predicate": lambda model: lambda name, module: name == "1",
    "several": lambda model: ["1", model[1][0]],
}


@each_setting
@pytest.mark.parametrize("entry", list(ENTRIES))
def test_the_layers_that_it_names_keep_weights_and_arithmetic(setting, entry, session):
    model, batch = make_model(setting), make_batch(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    initialize(setting, model, optimizer, keep_fp32=ENTRIES[entry](model), loss_scale=8.0)
    first = train_step(model, optimizer, batch)
    kept, others = model[1][0], (model[0], model[2])
    assert kept.weight.dtype is kept.saw is kept.computed is setting.high
    low = setting.high if setting.level == "O0" else setting.low
    weights = setting.low if setting.casts_weights else setting.high
    assert all(other.weight.dtype is weights and other.computed is low for other in others)
    for _ in range(5):
        last = train_step(model, optimizer, batch)
    assert last < first


@settings_at("O2", "O5")
def test_layers_of_the_command_line_are_added_to_the_script_s(setting, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_KEEP_FP32", "1.0,2")
    with session_of(setting):
        model = make_model(setting)
        initialize(setting, model, keep_fp32=["0"])
        assert {layer.weight.dtype for layer in (model[0], model[1][0], model[2])} == {setting.high}


@settings_at("O2", "O3", "O5", "O1", "O4")
def test_a_type_keeps_every_layer_of_it(setting, session):
    layers = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3), torch.nn.LayerNorm(3)
    model = torch.nn.Sequential(*layers).to(setting.high)
    initialize(setting, model, keep_fp32=[torch.nn.LayerNorm])
    assert {model[1].weight.dtype, model[3].weight.dtype} == {setting.high}
    output = model(make_batch(setting)[0])
    assert torch.isfinite(output.float()).all()


@each_setting
def test_a_batch_norm_inside_a_kept_layer_stays_inside(setting, session):
    block = torch.nn.Sequential(torch.nn.BatchNorm1d(6), Probe(6, 6), torch.nn.BatchNorm1d(6))
    model = torch.nn.Sequential(Probe(6, 6), block, torch.nn.BatchNorm1d(6), Probe(6, 3)).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    initialize(setting, model, optimizer, keep_fp32="1", loss_scale=8.0)
    first = train_step(model, optimizer, make_batch(setting))
    assert block[1].saw is block[1].computed is setting.high
    assert train_step(model, optimizer, make_batch(setting)) < first


@each_setting
@pytest.mark.parametrize("outputs", [None, torch.float16])
def test_a_model_can_be_kept_whole_and_its_outputs_are_cast_as_asked(setting, outputs, session):
    model, (x, _) = make_model(setting), make_batch(setting)
    expected = model(x).to(outputs or setting.high)
    initialize(setting, model, keep_fp32=model, cast_model_outputs=outputs)
    found = model(x)
    assert found.dtype is expected.dtype and torch.equal(found.float(), expected.float())  # 1.3 compares no halves


@pytest.mark.parametrize("entry", ["no.such.layer", torch.nn.LSTM])
def test_an_entry_that_matches_nothing_is_an_error_that_names_it(level, entry):
    with pytest.raises(RuntimeError, match="no.such.layer|LSTM"):
        amp.initialize(torch.nn.Linear(1, 1), opt_level=level, keep_fp32=[entry], verbosity=0)


@pytest.mark.parametrize("entry", [3, torch.float32, int])
def test_an_entry_of_another_kind_is_a_type_error(level, entry):
    with pytest.raises((TypeError, RuntimeError), match="keep_fp32"):
        amp.initialize(torch.nn.Linear(1, 1), opt_level=level, keep_fp32=[entry], verbosity=0)
