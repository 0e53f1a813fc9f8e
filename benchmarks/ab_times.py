"""Are the times that ``ab`` shows those of the script? Times of a training alone and as ``compare`` reports them.

    python benchmarks/ab_times.py [--steps 200] [--rounds 5]

Each row is a level of a network of 8 layers of width 256. The rounds alternate, so that a busy machine slows both.
"""

import argparse
import statistics
import time

import torch

from ampcompat import abtest, amp, session
from ampcompat.abtest.summary import seconds_per_step


def main():
    """Print a row per level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| level | alone, ms | as reported, ms | ratio | watched steps, ms |\n|---|---|---|---|---|")
    for level in ("O0", "O1", "O2", "O3"):
        rows = [measure(level, options.steps) for _ in range(options.rounds)]
        alone, reported, watched = [statistics.median(values) * 1e3 for values in zip(*rows)]
        ratio = statistics.median(own / plain for plain, own, _ in rows)
        print("| {} | {:.2f} | {:.2f} | {:.3f} | {:.2f} |".format(level, alone, reported, ratio, watched), flush=True)


def measure(level, steps):
    """Return the median seconds of a step alone, as reported, and of the watched steps."""
    times = []
    with session(level, verbosity=0):
        train(steps, times)
    report = abtest.compare(lambda _: train(steps, []), levels=[level], baseline=level, control=False)
    run = report.runs[level]
    watched = statistics.median(run.step_seconds[step] for step in run.watched[1:])
    return statistics.median(times[1:]), seconds_per_step(run), watched


def train(steps, times):
    """Train, and append the seconds of each step to ``times``."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), verbosity=0, loss_scale=128.0
    )
    inputs = torch.randn(64, 256)
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(inputs).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)


if __name__ == "__main__":
    main()
