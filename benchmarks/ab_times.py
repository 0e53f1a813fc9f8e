"""Are the times that ``ab`` shows those of the script? Times of a training alone and as ``compare`` reports them.

    python benchmarks/ab_times.py [--steps 200] [--rounds 5]

Each row is a level of a network of 8 layers of width 256: the fastest tenth of all steps, since other work on the
machine only slows steps. The rounds alternate.
"""

import argparse
import time

import torch

from ampcompat import abtest, amp, session
from ampcompat.abtest.summary import steady_seconds


def main():
    """Print a row per level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| level | alone, ms | as reported, ms | ratio | watched steps, ms |\n|---|---|---|---|---|")
    for level in ("O0", "O1", "O2", "O3"):
        rows = [measure(level, options.steps) for _ in range(options.rounds)]
        alone, reported, watched = [fastest(sum(times, [])) * 1e3 for times in zip(*rows)]
        ratio = reported / alone
        print("| {} | {:.2f} | {:.2f} | {:.3f} | {:.2f} |".format(level, alone, reported, ratio, watched), flush=True)


def fastest(times):
    """Return the time that a tenth of the steps do not exceed."""
    return sorted(times)[len(times) // 10]


def measure(level, steps):
    """Return the seconds of the steps alone, of those that are reported, and of the watched ones."""
    times = []
    with session(level, verbosity=0):
        train(steps, times)
    report = abtest.compare(lambda _: train(steps, []), levels=[level], baseline=level, control=False)
    run = report.runs[level]
    return times[1:], steady_seconds(run), [run.step_seconds[step] for step in run.watched[1:]]


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
