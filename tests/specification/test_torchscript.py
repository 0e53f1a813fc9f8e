"""Models that were scripted or traced before ``amp.initialize``."""

import pytest
import torch
from helpers.networks import initialize, make_batch, session_of, settings_at, train_step

from ampcompat.errors import AmpError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")  # new torch deprecates it


def network(setting):
    """A network without batch norm, about whose checks tracing warns."""
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to(setting.high)


def scripted(setting):
    return torch.jit.script(network(setting))


def traced(setting):
    return torch.jit.trace(network(setting), make_batch(setting)[0])


# O4 and O1 in one process: torch's own compiler keeps the dtype that autocast had at first.
@settings_at("O0", "O1")
@pytest.mark.parametrize("make", [scripted, traced])
def test_a_torchscript_model_trains(setting, make):
    model, batch = make(setting), make_batch(setting)
    with session_of(setting):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        initialize(setting, model, optimizer, loss_scale=8.0)
        losses = [train_step(model, optimizer, batch) for _ in range(4)]
        assert losses[-1] < losses[0]
    assert "_amp_forward" not in vars(model) and model(batch[0]).dtype is setting.high


@settings_at("O0", "O1")
def test_outputs_of_a_torchscript_model_are_cast(setting):
    model, (x, _) = scripted(setting), make_batch(setting)
    with session_of(setting):
        initialize(setting, model, cast_model_outputs=torch.float64)
        assert model(x).dtype is torch.float64


@settings_at("O2", "O3", "O5")
def test_a_scripted_model_with_half_weights_is_refused_with_what_to_do(setting):
    model = scripted(setting)
    with session_of(setting):
        with pytest.raises(AmpError, match="torch.jit.trace after amp.initialize"):
            initialize(setting, torch.nn.Sequential(model, torch.nn.ReLU()))
        assert next(model.parameters()).dtype is setting.high


@settings_at("O2", "O3", "O5")
def test_a_model_traced_after_initialize_trains(setting):
    model, batch = network(setting), make_batch(setting)
    with session_of(setting):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        initialize(setting, model, optimizer, loss_scale=8.0)
        of_trace = torch.jit.trace(model, batch[0])
        losses = [train_step(of_trace, optimizer, batch) for _ in range(4)]
        assert losses[-1] < losses[0] and of_trace(batch[0]).dtype is setting.high
