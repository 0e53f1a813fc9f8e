"""Small trainings for ``growth_warnings.py``: values that grow beyond float16's range, and healthy ones that do not.

A case is a class with what differs from a plain regression: ``model``, ``inputs``, ``loss``, ``rate``. ``modules`` are
those of which one has to be named, empty in a healthy training.
"""

import math

import torch
from torch import nn

from ampcompat import amp

STEPS, WIDTH = 60, 16

GROWING, HEALTHY = [], []


def growing(kind):
    """Add a training whose values overflow in the end."""
    GROWING.append(kind)
    return kind


def healthy(kind):
    """Add a training in which no value overflows."""
    HEALTHY.append(kind)
    return kind


class Body(nn.Module):
    """A module whose forward is a function of itself and its input."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.function, self.step = function, 0

    def forward(self, x):
        self.step += 1
        return self.function(self, x * self.weight)


class Net(nn.Module):
    """A linear layer, a body and another linear layer."""

    def __init__(self, body):
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(8, WIDTH), body, nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


class Plain:
    """The healthy regression that the cases change."""

    modules = ()
    rate = 0.02
    options = {}

    def function(self, body, x):
        return torch.relu(x)

    def model(self):
        return Net(Body(self.function))

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate)

    def inputs(self, step):
        return torch.randn(16, 8)

    def loss(self, output, x):
        return (output.float() - x[:, :1]).pow(2).mean()

    def train(self):
        """Train, as a script for Apex does; the level is forced from outside."""
        model = self.model()
        optimizer = self.optimizer(model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, **self.options)
        for step in range(STEPS):
            x = self.inputs(step)
            optimizer.zero_grad()
            with amp.scale_loss(self.loss(model(x), x), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()


# -- values that grow --------------------------------------------------------------------------------------------------


class Bounded(Plain):
    """A regression whose loss and gradients stay small whatever its body returns."""

    def loss(self, output, x):
        return torch.tanh(output.float() * 1e-6).mean() * 1e-3 + x.mean() * 0


@growing
class InputsGrowByAFifth(Bounded):
    modules = ("embed",)

    def inputs(self, step):
        return torch.randn(16, 8) * 10 * 1.2**step


@growing
class InputsDouble(Bounded):
    modules = ("embed",)

    def inputs(self, step):
        return torch.randn(16, 8) * 0.01 * 2.0**step


@growing
class InputsGrowLinearly(Bounded):
    modules = ("embed",)

    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * (1 + 2000.0 * step)


@growing
class StateAccumulates(Bounded):
    """A running sum that nobody resets."""

    modules = ("body", "head")

    def function(self, body, x):
        body.state = 1.3 * getattr(body, "state", 1.0)
        return x * body.state


@growing
class FactorialState(Bounded):
    modules = ("body", "head")

    def function(self, body, x):
        return x * math.gamma(1.0 + 0.2 * body.step)


@growing
class GainIsLearned(Plain):
    """A gain exp(w) that the loss rewards without a bound."""

    modules = ("body", "head")

    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.gain.float().exp().to(x.dtype)

    def model(self):
        return Net(self.Gain())

    rate = 100.0

    def loss(self, output, x):
        return -torch.log(output.float().abs().mean() + 1e-3) * 2e-3


@growing
class CriticWithoutBound(Plain):
    """The mean of the outputs is maximized, as by a critic that nothing regularizes."""

    modules = ("head",)
    rate = 0.3

    def inputs(self, step):
        return torch.randn(16, 8) + 1.0

    def loss(self, output, x):
        return -output.float().mean()


@growing
class DeepCriticWithoutBound(Plain):
    modules = ("head",)
    rate = 0.05

    def inputs(self, step):
        return torch.randn(16, 8) + 1.0

    def model(self):
        net = Net(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]))
        return net

    def loss(self, output, x):
        return -output.float().mean()


@growing
class RecurrentNetExplodes(Bounded):
    """A recurrence whose weight grows past 1, over a sequence of 24."""

    modules = ("body", "head")

    def function(self, body, x):
        factor = 0.9 + 0.012 * body.step
        for _ in range(24):
            x = x * factor
        return x


@growing
class LongerSequences(Bounded):
    """A recurrence that is unstable over the sequences of a curriculum."""

    modules = ("body", "head")

    def function(self, body, x):
        for _ in range(body.step):
            x = x * 1.25
        return x


@growing
class LogitsGrow(Bounded):
    """Logits of attention whose temperature falls."""

    modules = ("body", "head")

    def function(self, body, x):
        return x @ x.t() @ x * 1.15**body.step


@growing
class NoisyGrowth(Bounded):
    modules = ("embed",)

    def inputs(self, step):
        return torch.randn(16, 8) * 1.3**step * math.exp(0.2 * torch.randn(()).item())


@growing
class GrowsAfterAPlateau(Bounded):
    modules = ("embed",)

    def inputs(self, step):
        return torch.randn(16, 8) * 20 * 1.4 ** max(step - 30, 0)


@growing
class ResidualsGrow(Bounded):
    modules = ("body", "head")

    def function(self, body, x):
        for _ in range(6):
            x = x + x * 0.1 * body.step
        return x


@growing
class RateIsTooHigh(Plain):
    """Gradient descent on a quadratic that diverges slowly."""

    modules = ("embed",)

    def model(self):
        net = nn.Sequential()
        net.add_module("embed", nn.Linear(8, 1, bias=False))
        return net

    def inputs(self, step):
        return torch.ones(16, 8)

    def loss(self, output, x):
        return (output.float() - 1.0).pow(2).mean()

    rate = 0.19


# -- healthy trainings -------------------------------------------------------------------------------------------------

healthy(Plain)


@healthy
class GrowsAndLevelsOff(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * 8000 * (1 - math.exp(-step / 8))


@healthy
class GrowsFastAndLevelsOff(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * min(2.0**step, 4000.0)


@healthy
class LargeAndConstant(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * 9000


@healthy
class LargeAndNoisy(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * 3000 * math.exp(0.5 * torch.randn(()).clamp(-2, 2).item())


@healthy
class HeavyTails(Bounded):
    def inputs(self, step):
        return (torch.randn(16, 8) * 2.0).exp().clamp(max=5e3)


@healthy
class Oscillates(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8).clamp(-2, 2) * 4000 * (1.5 + math.sin(step / 5))


@healthy
class SlowCurriculum(Bounded):
    def inputs(self, step):
        return torch.randn(16, 8) * (1 + step)


@healthy
class Warmup(Plain):
    """Large targets, which the outputs approach."""

    rate = 0.05

    def loss(self, output, x):
        return (output.float() / 1000 - 10.0).pow(2).mean()


@healthy
class LargeTargets(Plain):
    rate = 0.01

    def loss(self, output, x):
        return (output.float() - 100.0).abs().mean()


@healthy
class Normalized(Plain):
    def model(self):
        return Net(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()))


@healthy
class WithAdam(Plain):
    def optimizer(self, params):
        return torch.optim.Adam(params, lr=0.05)


@healthy
class Convolutional(Plain):
    def model(self):
        return nn.Sequential(
            nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1)
        )


@healthy
class Recurrent(Plain):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRU(WIDTH, WIDTH)

        def forward(self, x):
            return self.cell(x.unsqueeze(0))[0].squeeze(0)

    def model(self):
        return Net(self.Cell())

    rate = 0.2


@healthy
class Attention(Plain):
    def model(self):
        return Net(nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0))
