"""Calls of ampcompat's Python functions in a forward pass of four encoder layers at O1 and O4, and its time.

Then the calls of a training iteration beside its forward pass (``scale_loss``, backward, ``step``, ``zero_grad``), with
8 and 200 params and Adam; before Python 3.12, comprehensions are calls. Half arithmetic is not emulated, the layers are
small, and the passes of the rival, torch.autocast, run in between: the ratio says what the casts cost in Python.

    python benchmarks/calls_per_forward.py [--backend native] [--width 16]
"""

import collections
import gc
import os
import pathlib
import statistics
import sys

import bench
import torch

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.opt_levels import OPT_LEVELS

PACKAGE = str(pathlib.Path(ampcompat.__file__).parent)
LEVELS = ("O1", "O4")


def make(width=16):
    """Return four encoder layers and their input."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True}
    layers = [torch.nn.TransformerEncoderLayer(width, 2, 2 * width, **options) for _ in range(4)]
    return torch.nn.Sequential(*layers), torch.randn(2, 4, width)


def calls(function):
    """Return {file and function: calls} of ampcompat's Python functions while ``function()`` runs."""
    counted = collections.Counter()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            counted[os.path.basename(frame.f_code.co_filename), frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def calls_at(level, backend):
    """Return the calls of the second forward pass of a session."""
    model, batch = make()
    with ampcompat.session(level, backend=backend, verbosity=0):
        amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(batch)
        return calls(lambda: model(batch))


def calls_beside_forward(level, backend, params):
    """Return the calls of the fourth training iteration of a model of this many params, without its forward pass."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(32)) for _ in range(params)])
    optimizer = torch.optim.Adam(model.parameters())

    def beside_forward(loss):
        bench.by_amp(optimizer, loss)
        optimizer.zero_grad()

    gc.collect()  # optimizers of earlier sessions, which scaled passes would look at
    with ampcompat.session(level, backend=backend, verbosity=0):
        amp.initialize(model, optimizer)
        for _ in range(4):
            loss = torch.stack([param.float().sum() for param in model]).sum()
            counted = calls(lambda loss=loss: beside_forward(loss))
    return counted


def _seconds(forward, passes=20):
    return min(bench.seconds(forward) for _ in range(passes))


def ratio(level, backend, width, rounds=15):
    """Return the time of a forward pass by that of torch.autocast: the shortest of each round, and their median."""
    (model, batch), (rival, _) = make(width), make(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def by_autocast():
        with torch.autocast("cpu", dtype=OPT_LEVELS[level].dtypes.low):
            return rival(batch)

    ratios = []
    for _ in range(rounds):
        plain = _seconds(by_autocast)
        with ampcompat.session(level, backend=backend, verbosity=0):
            amp.initialize(model, optimizer)
            model(batch)
            ratios.append(_seconds(lambda: model(batch)) / plain)
    return statistics.median(ratios)


def main():
    options = bench.options(__doc__, backend="native", width=16)
    os.environ[emulated_half_arithmetic.VARIABLE] = "off"
    torch.set_num_threads(1)
    for level in LEVELS:
        found = calls_at(level, options.backend)
        print(f"{level} {options.backend}: {sum(found.values())} calls", dict(found.most_common(5)))
        print(f"    {ratio(level, options.backend, options.width):.2f} x the time of torch.autocast")
    for level in ("O1", "O4", "O2", "O5"):
        found = [sum(calls_beside_forward(level, options.backend, params).values()) for params in (8, 200)]
        print("{}: {} and {} calls beside the forward pass with 8 and 200 params".format(level, *found))


if __name__ == "__main__":
    main()
