"""Is the first wrong operation named? Each case of ``first_difference_cases.py`` is run in float32 and at its level.

    python benchmarks/first_difference.py [--cases NAME …] [--healthy | --faults] [--overhead]

A row has the fault, the level, and what is named: its module, op and direction, with ``right`` where they are the
planted ones, and ``op only``, ``module only``, ``other`` or ``nothing`` otherwise. In healthy runs nothing is to be
named. Both runs are in this process; ``ab --first-difference`` has one for each. The exit code is 1 if fewer than 90 %
of the faults are named, or anything is in a healthy run. ``--overhead`` prints for the healthy cases the CPU time of
both runs over that of the same runs without a record.
"""

import argparse
import collections
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time

import ab_machine
import first_difference_cases as cases
import torch

from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import seeding
from ampcompat.tools.first_difference import observed_step

WANTED = 90


def main():
    """Print a row per case and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--healthy", action="store_true", help="only healthy runs")
    parser.add_argument("--faults", action="store_true", help="only faults")
    parser.add_argument("--overhead", action="store_true", help="measure times instead")
    parser.add_argument("--verbose", action="store_true", help="print all that is known")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    cases.DEVICE[0] = options.device
    torch.set_num_threads(1)
    if options.overhead:
        return overhead([case for case in cases.HEALTHY if not options.cases or case.name in options.cases])
    begin, counts, claims = time.time(), collections.Counter(), 0
    print("| kind | case | level | named | |\n|---|---|---|---|---|")
    for case in [] if options.healthy else cases.FAULTS:
        if not options.cases or case.name in options.cases:
            try:
                found = first_difference(case)
            except RuntimeError as error:
                print(case.name, str(error)[-700:])
                continue
            mark = judged(found["first"], case)
            counts[mark] += 1
            print(f"| {case.kind} | {case.name} | {case.level} | {described(found['first'])} | {mark} |", flush=True)
            show(options, found)
    for case in [] if options.faults else cases.HEALTHY:
        if not options.cases or case.name in options.cases:
            found = first_difference(case)
            claims += found["first"] is not None
            part = "" if found["parted"] is None else "parted: " + found["parted"]["told"]
            print(f"| healthy | {case.name} | {case.level} | {described(found['first'])} | {part} |", flush=True)
            show(options, found)
    total = sum(counts.values())
    print(f"\nnamed: {counts['right']} of {total} faults. Claims in healthy runs: {claims}.", dict(counts))
    print(f"{time.time() - begin:.0f} s. {ab_machine.describe()}")
    return 0 if claims == 0 and counts["right"] * 100 >= WANTED * total else 1


def show(options, found):
    """Print what is known of a case."""
    if options.verbose:
        for name in ("first", "parted", "checked", "unchecked"):
            print("   ", name, found[name])


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
    cases._level[0] = case.level
    with tempfile.TemporaryDirectory() as folder:
        run_once(case, "O0", "reference", folder)
        with cases.compared(), contextlib.ExitStack() as stack:
            if getattr(case, "plant", None) is not None:
                stack.enter_context(case.plant())
            return run_once(case, case.level, "compared", folder)


def overhead(chosen, rounds=1):
    """Print the CPU time of two runs with records and their comparison over that without; always return 0."""
    print("| case | level | two runs of two steps | recorded and compared | ratio |\n|---|---|---|---|---|")
    ratios, extras = [], []
    for case in chosen:
        seconds = {False: [], True: []}
        for number in range(2 * rounds + 2):
            is_recorded = number % 2 == 1
            start = time.process_time()
            if is_recorded:
                first_difference(case)
            else:
                cases._level[0] = case.level
                plain_run(case, "O0")
                with cases.compared():
                    plain_run(case, case.level)
            seconds[is_recorded].append(time.process_time() - start)
        plain, recorded = [statistics.median(seconds[each][1:]) for each in (False, True)]
        ratios.append(recorded / plain)
        extras.append(recorded - plain)
        print(
            f"| {case.name} | {case.level} | {plain * 1e3:.0f} ms | {recorded * 1e3:.0f} ms | {ratios[-1]:.1f} |",
            flush=True,
        )
    print(
        f"\nmedian ratio {statistics.median(ratios):.1f}; additional time {statistics.median(extras):.2f} s, "
        f"at most {max(extras):.2f} s. {ab_machine.describe()}"
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
