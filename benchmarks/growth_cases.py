"""Small trainings for ``growth_warnings.py``: values that grow beyond float16's range, and healthy ones that do not.

A row has its name, the modules of which one has to be named (none in a healthy training), and what differs from a plain
regression: ``inputs`` of a step; ``function`` of values and step, in the module ``body``, or ``body``, or ``model``;
``loss`` of the outputs and the inputs; ``rate`` or ``optimizer``.
"""

import math

import torch
from case_trainings import Body, Module, Net, Training
from torch import nn

WIDTH = 16


def normal(step):
    """Return inputs from the normal distribution."""
    return torch.randn(16, 8)


def clamped(factor):
    """Return a function that returns inputs up to twice a factor, which may depend on the step."""
    return lambda step: torch.randn(16, 8).clamp(-2, 2) * factor(step)


def training(name, modules=(), *, inputs=normal, function=None, body=None, model=None, loss=None, rate=0.02, **others):
    """Return a training: the plain regression where nothing else is given."""
    function = function or (lambda x, step: torch.relu(x))
    body = body or (lambda: Body(function, WIDTH))

    def batch(step):
        x = inputs(step)
        return (x,), x

    return Training(
        name,
        modules,
        model=model or (lambda: Net(body(), 8, WIDTH)),
        batch=batch,
        loss=loss or (lambda output, x: (output.float() - x[:, :1]).pow(2).mean()),
        optimizer=others.get("optimizer") or (lambda params: torch.optim.SGD(params, lr=rate)),
        steps=60,
        options={},
    )


def bounded(name, modules=(), **changes):
    """Return a regression whose loss and gradients stay small whatever its body returns."""
    loss = lambda output, x: torch.tanh(output.float() * 1e-6).mean() * 1e-3 + x.mean() * 0  # noqa: E731
    return training(name, modules, loss=loss, **changes)


def repeated(x, change, times):
    """Return what a function makes of x when it is called some times."""
    for _ in range(times):
        x = change(x)
    return x


def gain():
    """Return a module that multiplies by exp of its param."""
    module = Module(lambda self, x: x * self.gain.float().exp().to(x.dtype))
    module.gain = nn.Parameter(torch.ones(1))
    return module


def linear():
    """Return a linear layer without a bias, named embed."""
    net = nn.Sequential()
    net.add_module("embed", nn.Linear(8, 1, bias=False))
    return net


shifted = lambda step: torch.randn(16, 8) + 1.0  # noqa: E731
BODY = ("body", "head")

# fmt: off
GROWING = [
    bounded("InputsGrowByAFifth", ("embed",), inputs=lambda step: torch.randn(16, 8) * 10 * 1.2**step),
    bounded("InputsDouble", ("embed",), inputs=lambda step: torch.randn(16, 8) * 0.01 * 2.0**step),
    bounded("InputsGrowLinearly", ("embed",), inputs=clamped(lambda step: 1 + 2000.0 * step)),
    # A running product that nobody resets.
    bounded("StateAccumulates", BODY, function=lambda x, step: x * 1.3**step),
    bounded("FactorialState", BODY, function=lambda x, step: x * math.gamma(1.0 + 0.2 * step)),
    # A gain exp(w) that the loss rewards without a bound.
    training("GainIsLearned", BODY, body=gain, rate=100.0,
             loss=lambda output, x: -torch.log(output.float().abs().mean() + 1e-3) * 2e-3),
    # The mean of the outputs is maximized, as by a critic that nothing regularizes.
    training("CriticWithoutBound", ("head",), inputs=shifted, rate=0.3, loss=lambda output, x: -output.float().mean()),
    training("DeepCriticWithoutBound", ("head",), inputs=shifted, rate=0.05,
             body=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)),
             loss=lambda output, x: -output.float().mean()),
    # A recurrence whose weight grows past 1, over a sequence of 24.
    bounded("RecurrentNetExplodes", BODY,
            function=lambda x, step: repeated(x, lambda x: x * (0.9 + 0.012 * step), 24)),
    # A recurrence that is unstable over the sequences of a curriculum.
    bounded("LongerSequences", BODY, function=lambda x, step: repeated(x, lambda x: x * 1.25, step)),
    # Logits of attention whose temperature falls.
    bounded("LogitsGrow", BODY, function=lambda x, step: x @ x.t() @ x * 1.15**step),
    bounded("NoisyGrowth", ("embed",),
            inputs=lambda step: torch.randn(16, 8) * 1.3**step * math.exp(0.2 * torch.randn(()).item())),
    bounded("GrowsAfterAPlateau", ("embed",),
            inputs=lambda step: torch.randn(16, 8) * 20 * 1.4 ** max(step - 30, 0)),
    bounded("ResidualsGrow", BODY, function=lambda x, step: repeated(x, lambda x: x + x * 0.1 * step, 6)),
    # Gradient descent on a quadratic that diverges slowly.
    training("RateIsTooHigh", ("embed",), model=linear, inputs=lambda step: torch.ones(16, 8), rate=0.19,
             loss=lambda output, x: (output.float() - 1.0).pow(2).mean()),
]

HEALTHY = [
    training("Plain"),
    bounded("GrowsAndLevelsOff", inputs=clamped(lambda step: 8000 * (1 - math.exp(-step / 8)))),
    bounded("GrowsFastAndLevelsOff", inputs=clamped(lambda step: min(2.0**step, 4000.0))),
    bounded("LargeAndConstant", inputs=clamped(lambda step: 9000)),
    bounded("LargeAndNoisy",
            inputs=clamped(lambda step: 3000 * math.exp(0.5 * torch.randn(()).clamp(-2, 2).item()))),
    bounded("HeavyTails", inputs=lambda step: (torch.randn(16, 8) * 2.0).exp().clamp(max=5e3)),
    bounded("Oscillates", inputs=clamped(lambda step: 4000 * (1.5 + math.sin(step / 5)))),
    bounded("SlowCurriculum", inputs=lambda step: torch.randn(16, 8) * (1 + step)),
    # Large targets, which the outputs approach.
    training("Warmup", rate=0.05, loss=lambda output, x: (output.float() / 1000 - 10.0).pow(2).mean()),
    training("LargeTargets", rate=0.01, loss=lambda output, x: (output.float() - 100.0).abs().mean()),
    training("Normalized", body=lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())),
    training("WithAdam", optimizer=lambda params: torch.optim.Adam(params, lr=0.05)),
    training("Convolutional", model=lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))),
    training("Recurrent", rate=0.2, body=lambda: Module(
        lambda self, x: self.cell(x.unsqueeze(0))[0].squeeze(0), cell=nn.GRU(WIDTH, WIDTH))),
    training("Attention", body=lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0)),
]
# fmt: on
