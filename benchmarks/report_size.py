"""What reports of long runs take: recording, writing, reading, the table, the page and the image.

    python benchmarks/report_size.py [--steps 200000] [--recorded 1000000]

The report has four runs of so many steps: the baseline twice and two levels. Each row is measured in a process of its
own: seconds of the wall clock and of the CPU, the most memory that the process held, and how much of it was new.
"""

import argparse
import array
import math
import multiprocessing
import os
import random
import resource
import tempfile
import time

from ampcompat.abtest.recording.event_log import apply_event
from ampcompat.abtest.report_data import Report, Run
from ampcompat.cli import main as command


def main():
    """Print a row for each thing that is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200000)
    parser.add_argument("--recorded", type=int, default=1000000)
    options = parser.parse_args()
    print("| | seconds | CPU seconds | memory, MB | new, MB | file, MB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("report.json", "report.json.gz")]
        for path in paths:
            row("write", write, path, options.steps)
        for path in paths:
            row("read", read, path)
            row("report --html --png", show, path)
        row(f"record {options.recorded:,} steps", record, "", options.recorded)


def row(name, function, path, *args):
    """Print what a call takes; it returns the time at which what is measured began."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, cpu, memory, new = pool.apply(measured, (function, path) + args)
    size = f"{os.path.getsize(path) / 1e6:.1f}" if path else ""
    name += " " + os.path.basename(path)
    print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {memory:.0f} | {new:.0f} | {size} |", flush=True)


def measured(function, *args):
    """Return seconds, CPU seconds, and the process's largest memory: as such, and beyond that before the call."""
    prepared = function(*args)
    before, start, cpu = largest_memory(), time.perf_counter(), time.process_time()
    prepared()
    memory = largest_memory()
    return time.perf_counter() - start, time.process_time() - cpu, memory, memory - before


def largest_memory():
    """Return the megabytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def write(path, steps):
    """Prepare to write a report."""
    report = Report(environment={"script": "train.py", "seed": 0})
    report.runs = {level: made_run(steps, index) for index, level in enumerate(("O0", "O1", "O2"))}
    report.runs["O0"].repeats = [made_run(steps, 3)]
    return lambda: report.save(path)


def read(path):
    """Prepare to read a report."""
    return lambda: Report.load(path)


def show(path):
    """Prepare to print a report, and to write its page and image."""
    return lambda: command(["report", path, "--html", path + ".html", "--png", path + ".png"])


def record(path, steps):
    """Prepare to record events of steps."""

    def all_steps():
        run = Run()
        for step in range(steps):
            apply_event(run, step_event(step, 0.5, 65536.0))

    return all_steps


def step_event(step, loss, scale):
    """Return the event of a step; every fourth is not watched, and every two thousandth is skipped."""
    event = {"step": step, "loss": [[0, loss]], "scale": [[0, scale]], "skipped": step % 2000 == 1999}
    return dict(event, seconds=0.012, samples=32, watched=step % 4 != 3, metrics=[])


def made_run(steps, seed):
    """Return a run with float32 losses that fall, and times that vary."""
    generator, run = random.Random(seed), Run()
    fall = (2.3 * math.exp(-3.0 * step / steps) + 0.1 + 0.08 * generator.random() for step in range(steps))
    for step, loss in enumerate(array.array("f", fall)):
        event = step_event(step, loss, 65536.0 if seed else 1.0)
        event["seconds"] = round(0.012 * generator.lognormvariate(0, 0.15), 6)
        apply_event(run, event)
    return run


if __name__ == "__main__":
    main()
