"""Small trainings for the tests of forecasts, and the forecast of a training in this process."""

import pytest
import torch
from helpers import loops

from ampcompat import amp
from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.support.torch_compat import features

if not features.is_version_within(oldest="2.1"):
    pytest.skip("forecasts need torch 2.1", allow_module_level=True)

from ampcompat.diagnostics.forecast import forecast_json, forecast_observer  # noqa: E402


class Body(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Net(torch.nn.Module):
    """A linear layer, a body, and another linear layer."""

    def __init__(self, body=torch.relu):
        super().__init__()
        self.embed, self.head = torch.nn.Linear(6, 16), torch.nn.Linear(16, 1)
        self.body = body if isinstance(body, torch.nn.Module) else Body(body)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


def train(model, steps=12, optimizer=None, loss=None, inputs=None, level="O1", **options):
    """Train a model with amp, as a script does."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    for _ in range(steps):
        x = torch.randn(16, 6) if inputs is None else inputs()
        optimizer.zero_grad()
        output = model(x)
        value = (output - x[:, :1]).pow(2).mean() if loss is None else loss(output, x)
        loops.step(value, optimizer)


def record(function, steps=12, watch=forecast_observer.__name__):
    """Record a training at O0, and return (its events, its end)."""
    events = []
    recorder = Recorder(steps, events.append)
    initialize = {"loss_scale": 1.0}
    options = forced_run.RunOptions(
        verbosity=0, diagnose=False, memory=False, watch=watch, losses_by_line=True, initialize=initialize
    )
    with forced_run.recorded_at("O0", recorder, options):
        end = forced_run.run_to_end(recorder, function, ())
    return events, end


def forecast(model, steps=12, **options):
    """Return the forecast of a training; ``options`` are those of ``train``."""
    events, end = record(lambda: train(model, steps, **options), steps)
    assert end["end"] in ("ok", "stopped"), end
    found = [event["forecast"] for event in events if "forecast" in event]
    assert len(found) == 1
    return found[0]


def observe(model, monkeypatch, steps=3, **options):
    """Return the ``Observed`` of a training."""
    seen = []
    monkeypatch.setattr(forecast_json, "make", lambda observed: seen.append(observed) or {})
    record(lambda: train(model, steps, **options), steps)
    return seen[0]


def predictions(found):
    """Return ``{level: prediction}``."""
    return {level: each["prediction"] for level, each in found["levels"].items()}
