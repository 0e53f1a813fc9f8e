"""What do --diagnose, --op-stats and --stats-every cost? CPU time of a training step with each, over that without.

    python benchmarks/observing.py [--steps 20]

Times are CPU times of this process, the median of three rounds, so that other processes do not change them.
"""

import argparse
import statistics
import sys
import tempfile
import time

import ab_machine
import torch

import ampcompat
from ampcompat import amp
from ampcompat.tools.diagnostics.diagnosis import OverflowDiagnosis

LEVELS = ("O1", "O2")


def small():
    """Return a perceptron of 8 layers of width 64, and a batch."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), torch.randn(32, 64)


def large():
    """Return a transformer of two layers of width 256, and a batch of 8 sequences of 64."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 64, 256)


def main():
    """Print a row per network and level, and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="of each measurement; default: 20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ("nothing", "diagnose", "op_stats", "stats every step", "stats every 10th")
    print("| network | level | step | {} |\n|{}".format(" | ".join(names[1:]), "---|" * (len(names) + 2)))
    with tempfile.TemporaryDirectory() as folder:
        for make in (small, large):
            for level in LEVELS:
                found = {name: [] for name in names}
                for _ in range(3):
                    for name in names:
                        found[name].append(seconds(make, level, observed(name, folder), options.steps))
                medians = {name: statistics.median(each) for name, each in found.items()}
                ratios = ["{:.2f}".format(medians[name] / medians["nothing"]) for name in names[1:]]
                print(
                    f"| {make.__name__} | {level} | {medians['nothing'] * 1e3:.1f} ms | {' | '.join(ratios)} |",
                    flush=True,
                )
    print("\n" + ab_machine.describe())
    return 0


def observed(name, folder):
    """Return the arguments of ``session``."""
    if name == "diagnose":
        return {"observers": [OverflowDiagnosis(prints=False)]}
    if name == "op_stats":
        return {"op_stats_file": folder + "/calls.json"}
    if name.startswith("stats"):
        return {"stats_file": folder + "/stats.csv", "stats_every": 10 if "10" in name else 1}
    return {}


def seconds(make, level, options, steps):
    """Return the CPU time of a step."""
    torch.manual_seed(0)
    model, x = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampcompat.session(level, verbosity=0, loss_scale=128.0, **options):
        amp.initialize(model, optimizer)
        for step in range(steps + 3):
            if step == 3:
                begin = time.process_time()
            optimizer.zero_grad()
            with amp.scale_loss(model(x).float().pow(2).mean(), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        return (time.process_time() - begin) / steps


if __name__ == "__main__":
    sys.exit(main())
