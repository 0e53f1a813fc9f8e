"""Do the intervals of ``ab``'s speeds hold the true ratio while other work comes and goes on the machine?

    python benchmarks/ab_speed.py [--ratios 100] [--rounds 3] [--step 0.002] [--no-noise]

A level's step is a loop of known length, so that its speed is planted: 0.7 to 1.4 times the baseline's. Meanwhile a
process on the same core computes for a while and sleeps for a while, 20 to 500 ms each. As
``ab`` does, it is timed in rounds in which each level runs 20 steps. The last column is how far off the ratios
themselves are. The exit code is 1 if more than 5 % of the true ratios lie outside the intervals.
"""

import contextlib
import math
import multiprocessing
import os
import random
import statistics
import sys
import time

import bench

from ampcompat.abtest import Report, Run
from ampcompat.abtest.judging.summary import find_speeds

#: Steps of a run, as of ``ab --timing-steps``.
STEPS = 20

#: Seconds for which the other process computes or sleeps.
SHORTEST, LONGEST = 0.02, 0.5


def main():
    """Print the row and return the exit code."""
    options = bench.options(__doc__, ratios=100, rounds=3, step=0.002, no_noise=False)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    length = calibrated(options.step)
    rng = random.Random(0)
    ratios = [rng.uniform(0.7, 1.4) for _ in range(options.ratios)]
    with contextlib.nullcontext() if options.no_noise else noise():
        speeds = [in_turn(length, ratio, options.rounds) for ratio in ratios]
    outside = sum(not speed.interval[0] <= true <= speed.interval[1] for speed, true in zip(speeds, ratios))
    widths = [math.sqrt(speed.interval[1] / speed.interval[0]) - 1 for speed in speeds]
    errors = [abs(speed.ratio / true - 1) for speed, true in zip(speeds, ratios)]
    bench.heading("outside their 95 % interval", "half width, median", "error of the ratio: median, largest")
    error = f"{statistics.median(errors):.1%}, {max(errors):.1%}"
    bench.row(f"{outside} of {len(ratios)}", f"{statistics.median(widths):.1%}", error)
    print(f"\n{options.rounds} rounds of {STEPS} steps of {1e3 * options.step:g} ms")
    print(bench.machine())
    return 1 if outside > 0.05 * options.ratios else 0


def in_turn(length, ratio, rounds):
    """Return the speed of a level, measured in rounds as ``ab`` measures it."""
    report, lengths = Report(), {"O0": length, "O1": round(length / ratio)}
    for level in lengths:
        report.runs[level] = Run(timings=[])
    for number in range(rounds):
        for level in lengths if number % 2 == 0 else reversed(list(lengths)):
            report.runs[level].timings.append(Run(step_seconds=timed(lengths[level], STEPS)))
    return find_speeds(report)["O1"]


def timed(length, steps):
    """Return the seconds of each of so many steps."""
    return [bench.seconds(lambda: work(length)) for _ in range(steps)]


def work(length):
    """Compute for a time that is proportional to ``length``."""
    total = 0
    for number in range(length):
        total += number * number % 7
    return total


def calibrated(seconds):
    """Return the length whose work takes so many seconds."""
    return round(200000 * seconds / bench.seconds(lambda: work(200000)))


@contextlib.contextmanager
def noise():
    """Let another process compute and sleep on this process's core, by turns."""
    other = multiprocessing.get_context("spawn").Process(target=come_and_go, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.terminate()
        other.join()


def come_and_go():
    """Compute and sleep by turns, on the core that the parent process has."""
    rng = random.Random(1)
    while True:
        end = time.perf_counter() + rng.uniform(SHORTEST, LONGEST)
        while time.perf_counter() < end:
            work(1000)
        time.sleep(rng.uniform(SHORTEST, LONGEST))


if __name__ == "__main__":
    sys.exit(main())
