"""Causes of overflows that are planted in a small network: the explanation of the first one names what is planted."""

import sys
from typing import NamedTuple, Optional

import pytest
import torch
from helpers import compilers, loops, precision

import ampcompat
from ampcompat import amp
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis, add_diagnosis

needs_half = pytest.mark.skipif(precision.IS_STAND_IN, reason="float32, which stands in for half, does not overflow")

#: The step at which a cause begins; before it all is well.
FAULT, STEPS = 12, 18


class Body(torch.nn.Module):
    """A function of the input, which is multiplied by a weight of ones."""

    def __init__(self):
        super().__init__()
        self.weight, self.function = torch.nn.Parameter(torch.ones(16)), lambda x: x

    def forward(self, x):
        return self.function(x * self.weight)


class Net(torch.nn.Module):
    """A linear layer, a body and another linear layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = torch.nn.Linear(8, 16), Body(), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


class Cause(NamedTuple):
    """What is planted, and what the explanation has to contain; nothing is to be said where that is empty."""

    expected: list
    body: Optional[object] = None
    loss: Optional[object] = None
    inputs: Optional[object] = None
    prepare: Optional[object] = None
    init_scale: float = 8.0


def zero(x):
    """Return zeros that depend on x."""
    return x * 0.0


def nan_weight(net):
    """Make a weight nan, as a damaged checkpoint does."""
    with torch.no_grad():
        net.embed.weight[0, 0] = float("nan")


def large_weights(net):
    """Make the outputs of a layer too large for float16."""
    with torch.no_grad():
        net.head.weight.fill_(3e4)
        net.head.bias.fill_(6e4)


def masked_mean(output):
    """Return the mean over targets of which there are none."""
    mask = torch.zeros(len(output), 1)
    return (output.float().pow(2) * mask).sum() / mask.sum()


def squared(output):
    """Return the usual loss."""
    return output.float().pow(2).mean()


ADAM, HIGH_SCALE = "Adam's eps is 0 in float16", "loss scale too high at the start"
# fmt: off
CAUSES = {
    "output too large for float16": Cause(["head", "exceeds the largest float16"], prepare=large_weights),
    "nan in a batch": Cause(["nan", "the input of", "check the data"], inputs=lambda x: x * float("nan")),
    "inf in a batch": Cause(["inf", "the input of", "check the data"], inputs=lambda x: x + float("inf")),
    "input of 1e5, inf by the cast": Cause(["100000", "cast to float16", "scale the input"],
                                           inputs=lambda x: x * 0 + 1e5),
    "0/0 in a layer": Cause(["nan", "body", "0/0"], body=lambda x: zero(x) / zero(x)),
    "exp of large values": Cause(["inf", "body"], body=lambda x: torch.exp(x * 0 + 100.0)),
    "root at 0, backward": Cause(["nan", "body", "derivative of a root"], body=lambda x: x + torch.sqrt(zero(x))),
    "norm at 0, backward": Cause(["nan", "body", "derivative of a root, norm"],
                                 body=lambda x: x + (zero(x) ** 2).sum().sqrt()),
    "0 * inf behind a mask": Cause(["nan", "body", "behind a mask"],
                                   body=lambda x: torch.where(x > 1e3, 1 / zero(x), x)),
    "log of 0 in the loss": Cause(["the loss", "log(0)"], loss=lambda output: -torch.log(zero(output.float())).mean()),
    "mean over no target in the loss": Cause(["the loss", "a division by 0"], loss=masked_mean),
    HIGH_SCALE: Cause(["A dynamic scale starts high"], init_scale=2.0**24),
    "gradients too large at any scale": Cause(["too large"], loss=lambda output: squared(output) * 1e30),
    "nan in a weight": Cause(["embed.weight has nan"], prepare=nan_weight),
    ADAM: Cause(["eps=", "weights"]),
}
# fmt: on


def explanation(name, level):
    """Train with a planted cause and return the first explanation of it, or an empty string."""
    torch.manual_seed(0)
    diagnosis = OverflowDiagnosis(prints=False)
    with ampcompat.session(level, observers=[diagnosis], verbosity=0):
        train(CAUSES[name], name == ADAM)
    first = 0 if name in (ADAM, HIGH_SCALE) else FAULT
    return next((text for step, text, *_ in diagnosis.findings if step >= first), "")


def train(cause, is_adam):
    """Train the network; the fault begins at step ``FAULT``."""
    net = Net()
    kind = torch.optim.Adam if is_adam else torch.optim.SGD
    net, optimizer = amp.initialize(net, kind(net.parameters(), lr=1e-3), init_scale=cause.init_scale)
    for step in range(STEPS):
        inputs, is_faulty = torch.randn(4, 8), step >= FAULT
        inputs[:, 0] = inputs[:, 0] * 0 if is_adam else inputs[:, 0]  # gradients of exactly 0
        if is_faulty and cause.inputs:
            inputs = cause.inputs(inputs)
        if is_faulty and cause.body:
            net.body.function = cause.body
        if step == FAULT and cause.prepare:
            cause.prepare(net)
        output = net(inputs)
        loss = cause.loss(output) if is_faulty and cause.loss else squared(output)
        optimizer.zero_grad()
        loops.step(loss, optimizer)


@needs_half
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_is_named(name, level):
    told = explanation(name, level)
    if (name == HIGH_SCALE and level == "O3") or (name == ADAM and level != "O3"):
        assert told == ""
    else:
        assert all(each in told for each in CAUSES[name].expected), told


def test_a_step_without_a_call_of_the_model_does_not_blame_the_compiler(monkeypatch):
    if "torch._dynamo" in sys.modules and not compilers.TELLS_THAT_IT_TRACES:
        pytest.skip("with its compiler imported, this torch is altered when an optimizer is made")
    weight = torch.nn.Parameter(torch.ones(2))
    with ampcompat.session("O2", diagnose=True, verbosity=0) as session:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        amp.initialize(torch.nn.Linear(1, 1), optimizer)
        # Not before: to make an optimizer imports it with torch 2.3, which leaves two copies of it.
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
        loops.step((weight * float("inf")).sum(), optimizer)
        (text,) = [text for _, text, *_ in session.observers[0].findings]
    assert "none of the initialized modules was called" in text and "compile" not in text


@pytest.mark.parametrize("is_diagnosed_run", [True, False])
def test_a_diagnosed_run_speaks_whatever_verbosity_the_script_passes(capsys, is_diagnosed_run):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampcompat.session("O2", verbosity=0) as session:
        model, optimizer = amp.initialize(model, optimizer, verbosity=0, loss_scale="dynamic")
        add_diagnosis(session, prints_summary=is_diagnosed_run)
        loops.step(model(torch.ones(1, 2)).sum() * float("inf"), optimizer)
    assert ("was skipped" in capsys.readouterr().out) == is_diagnosed_run
