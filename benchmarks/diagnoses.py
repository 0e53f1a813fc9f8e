"""Are overflows explained rightly? Causes that are planted in a small network, at O1, O2 and O3.

    python benchmarks/diagnoses.py [--show]

Each row is a cause: whether the first explanation of it names what it should, at each level. ``--show`` prints all.
The exit code is 1 with fewer than 43 of 45 right.
"""

import collections
import sys

import bench
import torch
from case_trainings import Body, Net

import ampcompat
from ampcompat import amp
from ampcompat.trace.skipped_steps.diagnosis import OverflowDiagnosis

LEVELS = ("O1", "O2", "O3")

#: The step at which a cause begins; before it all is well.
FAULT, STEPS = 12, 18

#: What is planted, and what the explanation has to contain; nothing is to be said where that is empty.
Cause = collections.namedtuple(
    "Cause", "expected body loss inputs prepare options", defaults=(None, None, None, None, {})
)


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


CAUSES = {
    "output too large for float16": Cause(["head", "exceeds the largest float16"], prepare=large_weights),
    "nan in a batch": Cause(["nan", "the input of", "check the data"], inputs=lambda x: x * float("nan")),
    "inf in a batch": Cause(["inf", "the input of", "check the data"], inputs=lambda x: x + float("inf")),
    "input of 1e5, inf by the cast": Cause(
        ["100000", "cast to float16", "scale the input"], inputs=lambda x: x * 0 + 1e5
    ),
    "0/0 in a layer": Cause(["nan", "body", "0/0"], body=lambda x: zero(x) / zero(x)),
    "exp of large values": Cause(["inf", "body"], body=lambda x: torch.exp(x * 0 + 100.0)),
    "root at 0, backward": Cause(["nan", "body", "derivative of a root"], body=lambda x: x + torch.sqrt(zero(x))),
    "norm at 0, backward": Cause(
        ["nan", "body", "derivative of a root, norm"], body=lambda x: x + (zero(x) ** 2).sum().sqrt()
    ),
    "0 * inf behind a mask": Cause(
        ["nan", "body", "behind a mask"], body=lambda x: torch.where(x > 1e3, 1 / zero(x), x)
    ),
    "log of 0 in the loss": Cause(["the loss", "log(0)"], loss=lambda output: -torch.log(zero(output.float())).mean()),
    "mean over no target in the loss": Cause(["the loss", "a division by 0"], loss=masked_mean),
    "loss scale too high at the start": Cause([], options={"init_scale": 2.0**24}),
    "gradients too large at any scale": Cause(
        ["too large"], body=lambda x: x, loss=lambda output: squared(output) * 1e30
    ),
    "nan in a weight": Cause(["embed.weight has nan"], prepare=nan_weight),
    "Adam's eps is 0 in float16": Cause([], options={"adam": True}),
}


def main():
    """Print a row per cause and return the exit code."""
    options = bench.options(__doc__, show=False)
    right = 0
    bench.heading("cause", *LEVELS)
    for name, cause in CAUSES.items():
        told = [explanation(cause, level) for level in LEVELS]
        found = [is_right(cause, level, text) for level, text in zip(LEVELS, told)]
        right += sum(found)
        bench.row(name, *["right" if each else "WRONG" for each in found])
        for level, text, each in zip(LEVELS, told, found):
            if options.show or not each:
                print(f"    {level}: {text}")
    print(f"\n{right} of {len(CAUSES) * len(LEVELS)} right")
    print(bench.machine())
    return 0 if right >= 43 else 1


def is_right(cause, level, text):
    """Return whether an explanation has everything that it must have."""
    expected = cause.expected
    if "init_scale" in cause.options:
        expected = [] if level == "O3" else ["A dynamic scale starts high"]
    if "adam" in cause.options:
        expected = ["eps=", "weights"] if level == "O3" else []
    return all(each in text for each in expected) if expected else text == ""


def explanation(cause, level):
    """Train with a planted cause and return the first explanation of it, or an empty string."""
    torch.manual_seed(0)
    diagnosis = OverflowDiagnosis(prints=False)
    is_early = "init_scale" in cause.options
    with ampcompat.session(level, observers=[diagnosis], verbosity=0):
        train(cause)
    texts = [text for step, text, *_ in diagnosis.findings if is_early or step >= FAULT or "adam" in cause.options]
    return texts[0] if texts else ""


def train(cause):
    """Train the network; the fault begins at step ``FAULT``."""
    net = Net(Body(lambda x, step: x, 16), 8, 16, 4)
    is_adam = "adam" in cause.options
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3) if is_adam else torch.optim.SGD(net.parameters(), lr=1e-3)
    options = {"init_scale": cause.options.get("init_scale", 8.0)}
    net, optimizer = amp.initialize(net, optimizer, **options)
    for step in range(STEPS):
        inputs, is_faulty = torch.randn(4, 8), step >= FAULT
        inputs[:, 0] = inputs[:, 0] * 0 if is_adam else inputs[:, 0]  # gradients of exactly 0
        if is_faulty and cause.inputs:
            inputs = cause.inputs(inputs)
        if is_faulty and cause.body:
            net.body.function = lambda x, step: cause.body(x)
        if step == FAULT and cause.prepare:
            cause.prepare(net)
        output = net(inputs)
        loss = cause.loss(output) if is_faulty and cause.loss else squared(output)
        optimizer.zero_grad()
        bench.by_amp(optimizer, loss)


if __name__ == "__main__":
    sys.exit(main())
