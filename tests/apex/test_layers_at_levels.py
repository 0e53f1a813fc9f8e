"""The layers of Apex train at every level; norms are computed in float32 where weights are not cast."""

import pytest
import torch
from helpers.networks import each_setting, initialize, session_of, train_step

from ampcompat.apex import mlp, normalization, recurrent
from ampcompat.apex.contrib import FastLayerNorm
from ampcompat.apex.reparameterization import apply_weight_norm


class OverSequences(torch.nn.Module):
    """Takes each sample as a sequence of three vectors, and classifies by its last output."""

    def __init__(self, kind):
        super().__init__()
        self.network = kind(2, 8, 1)

    def forward(self, x):
        self.network.reset_hidden(len(x))
        return self.network(x.view(-1, 3, 2).transpose(0, 1))[0][-1][:, :3]


def around(layer):
    return torch.nn.Sequential(torch.nn.Linear(6, 8), layer, torch.nn.ReLU(), torch.nn.Linear(8, 3))


NORMS = ["FusedLayerNorm", "MixedFusedLayerNorm", "FusedRMSNorm", "MixedFusedRMSNorm"]
MODELS = {
    "MLP": lambda: mlp.MLP([6, 8, 3], activation="sigmoid"),
    "FusedDense": lambda: torch.nn.Sequential(mlp.FusedDense(6, 8), torch.nn.ReLU(), mlp.FusedDense(8, 3, bias=False)),
    "FusedDenseGeluDense": lambda: mlp.FusedDenseGeluDense(6, 8, 3),
    "FastLayerNorm": lambda: around(FastLayerNorm(8)),
    "weight norm": lambda: apply_weight_norm(around(torch.nn.BatchNorm1d(8))),
}
for name in NORMS:
    MODELS[name] = lambda name=name: around(getattr(normalization, name)(8))
for name in ["LSTM", "GRU", "mLSTM"]:
    MODELS[name] = lambda name=name: OverSequences(getattr(recurrent, name))


@pytest.mark.filterwarnings("ignore:torch.nn.utils.weight_norm is deprecated:UserWarning")  # torch 2.0 to 2.4
@each_setting
@pytest.mark.parametrize("name", MODELS)
def test_it_trains(setting, name):
    torch.manual_seed(0)
    model = MODELS[name]().to(setting.high)
    batch = torch.randn(16, 6).to(setting.high), torch.arange(16) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with session_of(setting):
        initialize(setting, model, optimizer, loss_scale=128.0)
        losses = [train_step(model, optimizer, batch) for _ in range(12)]
        seen = []
        hooked = model[1] if name in NORMS else model
        hooked.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        model(batch[0])
    assert losses[-1] < losses[0]
    is_low = setting.casts_weights if name in NORMS else setting.casts_functions
    if name in NORMS or name in ("MLP", "FusedDense", "FusedDenseGeluDense"):
        assert seen[0] is (setting.low if is_low else setting.high)
