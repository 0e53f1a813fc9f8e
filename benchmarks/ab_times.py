"""Are the times that ``ab`` shows those of the script? Times of a training alone and as ``compare`` reports them.

    python benchmarks/ab_times.py [--rounds 12] [--steps 60] [--wall]

The network has 8 layers of width 256. In each round it is trained at each level alone and under ``compare``; the ratio
of a round is that of the two medians, and a row shows the median ratio of all rounds and its quartiles. Steps are
timed by the process's CPU time, which other work on the machine changes less than the wall clock.
"""

import argparse
import statistics
import time
import types

import ab_machine
import torch

from ampcompat import abtest, amp, session
from ampcompat.abtest.judging.summary import steady_seconds
from ampcompat.abtest.recording import recorder

LEVELS = ("O0", "O1", "O2", "O3")


def main():
    """Print a row per level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--wall", action="store_true", help="time by the wall clock, as `ab` does")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    recorder.time = types.SimpleNamespace(perf_counter=clock)
    rounds = [{level: measure(level, options.steps, clock) for level in LEVELS} for _ in range(options.rounds)]
    print("| level | alone, ms | as reported, ms | ratio (quartiles) | watched steps: ratio |\n|---|---|---|---|---|")
    for level in LEVELS:
        alone, reported, watched = zip(*[each[level] for each in rounds])
        ratios = [one / other for one, other in zip(reported, alone)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        slow = statistics.median(one / other for one, other in zip(watched, alone))
        times = [statistics.median(each) * 1e3 for each in (alone, reported)]
        print(
            "| {} | {:.2f} | {:.2f} | {:.3f} ({:.3f} to {:.3f}) | {:.2f} |".format(
                level, *times, middle, low, high, slow
            )
        )
    print("\n" + ab_machine.describe())


def measure(level, steps, clock):
    """Return the median seconds of the steps alone, of those that are reported, and of the watched ones."""
    times = []
    with session(level, verbosity=0):
        train(steps, times, clock)
    report = abtest.compare(lambda _: train(steps, [], clock), levels=[level], baseline=level, control=False)
    run = report.runs[level]
    watched = [run.step_seconds[step] for step in run.watched if step not in {0}.union(run.measured)]
    return [statistics.median(each) for each in (times[1:], steady_seconds(run), watched)]


def train(steps, times, clock):
    """Train, and append the seconds of each step to ``times``."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), verbosity=0, loss_scale=128.0
    )
    inputs = torch.randn(64, 256)
    for _ in range(steps):
        start = clock()
        optimizer.zero_grad()
        loss = model(inputs).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        times.append(clock() - start)


if __name__ == "__main__":
    main()
