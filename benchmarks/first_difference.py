"""Is the first wrong operation named? Each case of ``first_difference_cases.py`` is run in float32 and at its level.

    python benchmarks/first_difference.py [--cases NAME …] [--healthy | --faults] [--overhead] [--verbose]

A row has the fault, the level, and what is named: its module, op and direction, with ``right`` where they are the
planted ones, and ``op only``, ``module only``, ``other`` or ``nothing`` otherwise. In healthy runs nothing is to be
named. Both runs are in this process; ``ab --first-difference`` has one for each. The exit code is 1 if fewer than 90 %
of the faults are named, or anything is in a healthy run. ``--overhead`` prints for the healthy cases the CPU time of
both runs over that of the same runs without a record.
"""

import collections
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time

import bench
import first_difference_cases as cases
import torch

from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import seeding
from ampcompat.tools.first_difference import observed_step

WANTED = 90


def main():
    """Print a row per case and return the exit code."""
    stated = bench.options(__doc__, cases=[], healthy=False, faults=False, overhead=False, verbose=False, device="cpu")
    cases.DEVICE[0] = stated.device
    torch.set_num_threads(1)
    healthy, faults = ([case for case in kind if not stated.cases or case.name in stated.cases]
                       for kind in (cases.HEALTHY, cases.FAULTS))  # fmt: skip
    if stated.overhead:
        return overhead(healthy)
    begin, counts, claims = time.time(), collections.Counter(), 0
    bench.heading("kind", "case", "level", "named", "")
    for case in ([] if stated.healthy else faults) + ([] if stated.faults else healthy):
        found = first_difference(case)
        if case.kind == "healthy":
            claims += found["first"] is not None
            mark = "" if found["parted"] is None else "parted: " + found["parted"]["told"]
        else:
            mark = judged(found["first"], case)
            counts[mark] += 1
        bench.row(case.kind, case.name, case.level, described(found["first"]), mark)
        if stated.verbose:
            for name in ("first", "parted", "checked", "unchecked"):
                print("   ", name, found[name])
    total = sum(counts.values())
    print(f"\nnamed: {counts['right']} of {total} faults. Claims in healthy runs: {claims}.", dict(counts))
    print(f"{time.time() - begin:.0f} s. {bench.machine()}")
    return 0 if claims == 0 and counts["right"] * 100 >= WANTED * total else 1


def described(first):
    """Return what is named, in a few words."""
    if first is None:
        return "nothing"
    module = "-" if first["module"] is None else first["module"] or "the model"
    told = f"{module}: {first['op']} {first['direction']}, {first['introduced']:.3g} eps of {first['unit']}"
    return f"{told}: {first['told']}"


def judged(first, case):
    """Return whether what is named is what was planted."""
    if first is None:
        return "nothing"
    has_op = (first["op"], first["direction"]) == (case.op, case.direction)
    has_module = first["module"] == case.module
    return "right" if has_op and has_module else "op only" if has_op else "module only" if has_module else "other"


def first_difference(case):
    """Run a case twice and return what the comparison found.

    Raises:
        RuntimeError: a run failed, with its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_once(case, "O0", "reference", folder)
        with cases.compared(case.level), case.plant() if case.plant else contextlib.nullcontext():
            return run_once(case, case.level, "compared", folder)


def overhead(chosen, rounds=1):
    """Print the CPU time of two runs with records and their comparison over that without; always return 0."""
    bench.heading("case", "level", "two runs of two steps", "recorded and compared", "ratio")
    ratios, extras = [], []
    for case in chosen:

        def plain(case=case):
            plain_run(case, "O0")
            with cases.compared(case.level):
                plain_run(case, case.level)

        found = bench.interleaved(
            {
                "plain": lambda plain=plain: bench.seconds(plain, clock=time.process_time),
                "recorded": lambda case=case: bench.seconds(lambda: first_difference(case), clock=time.process_time),
            },
            rounds,
            warm_up=1,
        )
        plain, recorded = (statistics.median(times) for times in found.values())
        ratios.append(recorded / plain)
        extras.append(recorded - plain)
        bench.row(case.name, case.level, f"{plain * 1e3:.0f} ms", f"{recorded * 1e3:.0f} ms", f"{ratios[-1]:.1f}")
    print(
        f"\nmedian ratio {statistics.median(ratios):.1f}; additional time {statistics.median(extras):.2f} s, "
        f"at most {max(extras):.2f} s. {bench.machine()}"
    )
    return 0


def plain_run(case, level):
    """Run a case at a level without a record."""
    recorder = Recorder(2, None)
    options = forced_run.RunOptions(verbosity=0, diagnose=False, memory=False)
    seeding.seed_all(0, 0)
    with seeding.restored(), forced_run.recorded_at(level, recorder, options):
        train = lambda: cases.train(case.network, level, case.loss_of, passes=case.passes)  # noqa: E731
        forced_run.run_to_end(recorder, train, ())


def run_once(case, level, role, folder):
    """Run a case at a level and return what its observer found."""
    task = {"role": role, "folder": folder, "step": 1, "level": case.level, "initialize": {}, "limit": 1 << 30}
    found = []
    recorder = Recorder(2, lambda event: found.append(event))
    options = forced_run.RunOptions(verbosity=0, diagnose=False, memory=False, watch=observed_step.__name__)
    os.environ["AMPCOMPAT_FIRST_DIFFERENCE"] = json.dumps(task)
    seeding.seed_all(0, 0)
    with seeding.restored(), forced_run.recorded_at(level, recorder, options):
        train = lambda: cases.train(case.network, level, case.loss_of, passes=case.passes)  # noqa: E731
        end = forced_run.run_to_end(recorder, train, ())
    events = [event["first_difference"] for event in found if "first_difference" in event]
    if not events:
        raise RuntimeError(f"{case.name} at {level}: {end}\n{end.get('traceback', '')}")
    return events[-1]


if __name__ == "__main__":
    sys.exit(main())
