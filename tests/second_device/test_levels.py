"""Training at every level gives what it gives on the CPU: levels, optimizers, loss scales, overflows, accumulation."""

import math

import pytest
import torch
from helpers.pairing import paired
from xla import compilations, eager_mode, end_step, parameters, reads

import ampcompat
from ampcompat import amp
from ampcompat.apex.optimizers import FusedAdam

#: The largest difference of a weight from the CPU's at O0: weights of plain torch on xla differ from those of plain
#: torch on the CPU by as much, by 2.9e-6 with Adam.
IN_FLOAT32 = 4e-6

#: A rounding of the half dtype; at O3, where weights and the optimizer's state are half, too, two of them.
ROUNDING = {"O0": 0.0, "O1": 2.0**-10, "O2": 2.0**-10, "O3": 2.0**-9, "O4": 2.0**-7, "O5": 2.0**-7}

#: As much more for the CNN in float16: torch_xla sums within its convolutions in float16, and the CPU in float32.
OF_CONVOLUTIONS = 20


class Encoder(torch.nn.Module):
    """One layer of a transformer, with its mean."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.layer(x.unflatten(1, (2, 8))).mean(1))


class LSTM(torch.nn.Module):
    """An LSTM with its last output."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 6, batch_first=True)
        self.last = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.lstm(x.unflatten(1, (2, 8)))[0][:, -1])


def mlp():
    """Return layers with a batch norm."""
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), linear(8, 1))


def cnn():
    """Return a convolution with a batch norm."""
    convolution = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 4)), *convolution, torch.nn.Flatten(), torch.nn.Linear(16, 1)
    )


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": Encoder, "lstm": LSTM}
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-3),
    "FusedAdam": lambda params: FusedAdam(params, lr=0.01, eps=1e-3),
}


class Training:
    """One training on a device; without amp if ``level`` is None."""

    def __init__(self, device, level, model="mlp", optimizer="SGD", **options):
        torch.manual_seed(0)
        self.device = device
        model = MODELS[model]().to(device)
        optimizer = OPTIMIZERS.get(optimizer, optimizer)(model.parameters())
        self.level, self.model, self.optimizer = level, model, optimizer
        if level:
            amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
        self.random = torch.Generator().manual_seed(1)

    def backward(self, factor=1.0, divisor=1.0):
        x = torch.randn(8, 16, generator=self.random)
        y = x.sum(1, keepdim=True) / 4
        loss = (self.model(x.to(self.device)).float() - y.to(self.device)).pow(2).mean() / divisor
        if self.level:
            with amp.scale_loss(loss * factor, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            (loss * factor).backward()

    def step(self, **arguments):
        self.optimizer.step(**arguments)
        end_step(self.device)
        self.optimizer.zero_grad()

    def state(self):
        return parameters(self.model), amp.state_dict()


def plain(training):
    for _ in range(3):
        training.backward()
        training.step()


def overflow(training):
    for step in range(3):
        training.backward(math.inf if step == 1 else 1.0)
        training.step()


def accumulated(training):
    for _ in range(2):
        training.backward(divisor=2.0)
        training.backward(divisor=2.0)
        training.step()


def clipped(training):
    for _ in range(3):
        training.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(training.optimizer), 0.25)
        training.step()


def resumed(training):
    plain(training)
    saved = training.model.state_dict(), training.optimizer.state_dict(), amp.state_dict()
    plain(training)
    for each, state in zip((training.model, training.optimizer, amp), saved):
        each.load_state_dict(state)
    plain(training)


def after_reset(training):
    plain(training)
    ampcompat.reset()
    for _ in range(2):
        x = torch.randn(8, 16, generator=training.random).to(training.device)
        training.optimizer.zero_grad()
        training.model(x).pow(2).mean().backward()
        training.optimizer.step()
        end_step(training.device)


LOOPS = {each.__name__: each for each in (plain, overflow, accumulated, clipped, resumed, after_reset)}


def results(device, level, model, optimizer, scale, loop):
    """Return the weights and the loss scales after a loop."""
    options = {"loss_scale": "dynamic", "init_scale": 128.0} if scale == "dynamic" else {"loss_scale": scale}
    training = Training(device, level, model, optimizer, **options)
    LOOPS[loop](training)
    found = training.state()
    ampcompat.reset()
    return found


@pytest.fixture
def eager():
    """Let torch_xla compute each operation when it is called; it compiles them one by one, and none of them twice."""
    eager_mode(True)
    yield
    eager_mode(False)


def farthest(weights, expected):
    """Return the largest difference of a weight; where an overflow was not skipped, nan may only meet nan."""
    assert torch.equal(weights.isnan(), expected.isnan())
    return (weights - expected).nan_to_num(0.0).abs().max().item()


#: Paired with other axes, each level trains each model with each of their values.
TRAINED = [pytest.param((level, model), id=f"{level}-{model}") for level in ROUNDING for model in MODELS]


@paired("trained, optimizer, scale, loop", TRAINED, list(OPTIMIZERS), ["dynamic", 64.0], list(LOOPS))
def test_training_is_as_near_to_float32_as_on_the_cpu(trained, optimizer, scale, loop, eager):
    level, model = trained
    (reference, _), expected, found = [
        results(*each, model, optimizer, scale, loop) for each in (("cpu", "O0"), ("cpu", level), ("xla", level))
    ]
    rounding = ROUNDING[level] * (OF_CONVOLUTIONS if model == "cnn" and level in ("O1", "O2", "O3") else 1)
    assert farthest(found[0], reference) <= IN_FLOAT32 + rounding + 2 * farthest(expected[0], reference)
    assert found[1] == expected[1]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("model", list(MODELS))
def test_o0_gives_what_torch_alone_gives_on_the_device(model, optimizer, eager):
    weights = []
    for level, options in (("O0", {"loss_scale": 64.0}), (None, {})):
        training = Training("xla", level, model, optimizer, **options)
        plain(training)
        weights.append(parameters(training.model))
        ampcompat.reset()
    torch.testing.assert_close(*weights, rtol=0, atol=1e-7)  # bit for bit, but for one weight of the LSTM with Adam


@paired("level, optimizer", list(ROUNDING), list(OPTIMIZERS))
def test_a_step_reads_one_value_and_no_new_scale_is_compiled(level, optimizer):
    training = Training("xla", level, optimizer=optimizer, loss_scale="dynamic", init_scale=1024.0)
    for factor in (1.0, 1.0, math.inf, math.inf, 1.0, 1.0):
        training.backward(factor)
        training.step()
    before, compiled = reads(), compilations()
    for factor in (1.0, math.inf, 1.0, 1.0):
        training.backward(factor)
        training.step()
    assert reads() - before <= 4
    assert compilations() == compiled
