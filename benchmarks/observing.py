"""What do --diagnose, --op-stats and --stats-every cost? CPU time of a training step with each, over that without.

    python benchmarks/observing.py [--steps 20]

Times are CPU times of this process, the median of three rounds, so that other processes do not change them. ``small``
is a perceptron of 8 layers of width 64, ``large`` a transformer of two layers of width 256.
"""

import statistics
import sys
import tempfile
import time

import bench
import torch
from networks import encoder, perceptron

import ampcompat
from ampcompat import amp
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis

NETWORKS = {
    "small": lambda: (perceptron(*[64] * 9), torch.randn(32, 64)),
    "large": lambda: (encoder(2, 256, 4, 1024), torch.randn(8, 64, 256)),
}


def main():
    """Print a row per network and level, and return 0."""
    stated = bench.options(__doc__, steps=20)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        observed = {
            "nothing": dict,
            "diagnose": lambda: {"observers": [OverflowDiagnosis(prints=False)]},
            "op_stats": lambda: {"op_stats_file": folder + "/calls.json"},
            "stats every step": lambda: {"stats_file": folder + "/stats.csv", "stats_every": 1},
            "stats every 10th": lambda: {"stats_file": folder + "/stats.csv", "stats_every": 10},
        }
        bench.heading("network", "level", "step", *list(observed)[1:])
        for name, make in NETWORKS.items():
            for level in ("O1", "O2"):
                subjects = {
                    each: lambda make=make, level=level, options=options: seconds(make, level, options(), stated.steps)
                    for each, options in observed.items()
                }
                found = bench.interleaved(subjects, rounds=3)
                nothing, *others = (statistics.median(times) for times in found.values())
                bench.row(name, level, f"{nothing * 1e3:.1f} ms", *[f"{each / nothing:.2f}" for each in others])
    print("\n" + bench.machine())
    return 0


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
            bench.by_amp(optimizer, model(x).float().pow(2).mean())
        return (time.process_time() - begin) / steps


if __name__ == "__main__":
    sys.exit(main())
