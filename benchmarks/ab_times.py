"""Are the times that ``ab`` shows those of the script? Times of a training alone and as ``compare`` reports them.

    python benchmarks/ab_times.py [--rounds 6] [--steps 60]
    python benchmarks/ab_times.py --series

The network has 8 layers of width 256. In each round it is trained alone and under ``compare``; the ratio of a round is
that of the two medians, and a row shows the median ratio of a level's rounds and its quartiles. Steps are timed by the
process's CPU time, which other work on the machine changes less than the wall clock. With ``--series``:
the times of ``ab`` with its default options, and of one run of the same script at each of its levels.
"""

import os
import statistics
import subprocess
import sys
import time
import types

import bench
import torch
from networks import perceptron

from ampcompat import abtest, amp, session
from ampcompat.abtest.judging.summary import steady_seconds
from ampcompat.abtest.recording import recorder

LEVELS = bench.LEVELS[:4]

#: The script of ``--series`` and its arguments, in this checkout.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = [os.path.join(ROOT, "examples", "char_transformer.py"), "--steps", "100"]


def main():
    """Print a row per level, or per run of the series."""
    stated = bench.options(__doc__, rounds=6, steps=60, series=False)
    if stated.series:
        return series()
    if stated.steps < 40:
        raise SystemExit("--steps: at least 40, since the first steps and those after measured ones do not count")
    recorder.time = types.SimpleNamespace(perf_counter=time.process_time)
    bench.heading("level", "alone, ms", "as reported, ms", "ratio (quartiles)", "watched steps: ratio")
    for level in LEVELS:
        alone, reported, watched = zip(*(measure(level, stated.steps) for _ in range(stated.rounds)))
        low, middle, high = statistics.quantiles([one / other for one, other in zip(reported, alone)], n=4)
        times = [f"{statistics.median(each) * 1e3:.2f}" for each in (alone, reported)]
        bench.row(level, *times, f"{middle:.3f} ({low:.3f} to {high:.3f})", f"{bench.ratio(watched, alone):.2f}")
    print("\n" + bench.machine())


def series():
    """Print the CPU time and the wall-clock time of each run by itself, and of ``ab``."""
    bench.heading("command", "CPU, s", "wall clock, s")
    alone = sum(_printed(["run", "--opt-level", level]) for level in LEVELS)
    whole = _printed(["ab", "--levels", ",".join(LEVELS)])
    print(f"\nab: {whole / alone:.2f} times the {len(LEVELS)} runs\n" + bench.machine())


def _printed(options):
    """Run a command of ampcompat with the script, print a row, and return the CPU time of its processes."""
    command = [sys.executable, "-m", "ampcompat"] + options + SCRIPT
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    before = os.times()
    seconds = bench.seconds(lambda: subprocess.run(command, check=True, **output))
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    bench.row(" ".join(options), f"{used:.1f}", f"{seconds:.1f}")
    return used


def measure(level, steps):
    """Return the median seconds of the steps alone, of those that are reported, and of the watched ones."""
    times = []
    with session(level, verbosity=0):
        train(steps, times)
    report = abtest.compare(lambda _: train(steps, []), levels=[level], baseline=level, control=False)
    run = report.runs[level]
    watched = [run.step_seconds[step] for step in run.watched if step not in {0}.union(run.measured)]
    return [statistics.median(each) for each in (times[1:], steady_seconds(run), watched)]


def train(steps, times):
    """Train, and append the seconds of each step to ``times``."""
    model, inputs = perceptron(*[256] * 9), torch.randn(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer = amp.initialize(model, optimizer, verbosity=0, loss_scale=128.0)

    def step():
        optimizer.zero_grad()
        bench.by_amp(optimizer, model(inputs).float().pow(2).mean())

    times.extend(bench.seconds(step, clock=time.process_time) for _ in range(steps))


if __name__ == "__main__":
    main()
