"""Everything that a GPU is needed for, in one command: tests, self-test and benchmarks, each with its targets.

Prints the output of each step under what it should show, ends with one line per step, and keeps the outputs in a
folder, with device, torch and date, to be committed in ``benchmarks/RESULTS.md``. About 25 minutes on one H100.
``--list`` prints the steps with their targets and runs nothing.

    python benchmarks/on_gpu.py [--folder gpu-results] [--only STEP ...] [--list]
"""

import collections
import datetime
import os
import pathlib
import subprocess
import sys
import time

import bench
import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
Step = collections.namedtuple("Step", "name targets command")

# fmt: off
STEPS = (
    Step("tests", "every test passes; those for two devices run where there are two", "-m pytest -q -m cuda tests"),
    Step("selftest", "no row failed",
         "-m ampcompat selftest --device cuda --json {folder}/selftest.json"),
    Step("bert",
         "to autocast: O1 at most 1.01 (0.99 of its throughput), O2 at most 0.91 (1.10); O2's peak at most 0.85 of "
         "autocast's; to float32 with TF32 off: O1 and O2 at most 0.40",
         "benchmarks/seed_networks.py --networks bert --ways float32 autocast O1 O2 O4 O5 --device cuda --batch 32 "
         "--length 128 --no-tf32"),
    Step("unet and tabular", "to autocast: O1 at most 1.01",
         "benchmarks/seed_networks.py --networks tabular unet --device cuda --batch 16 --size 256 --no-tf32"),
    Step("mlp", "ratio at O1 at most 1.10", "benchmarks/o1_overhead.py --networks mlp --device cuda"),
    Step("transformer", "ratio at most 1.03", "benchmarks/o1_overhead.py --networks transformer --device cuda"),
    Step("step", "host reads of fused-adam 0; ratios at most 1.10",
         "benchmarks/step_overhead.py --device cuda --rounds 60 --optimizers sgd fused-adam"),
    Step("memory", "fused Adam: 16 bytes per param at O0, O1, O4; 18 at O2, O5; 8 at O3",
         "benchmarks/memory.py --device cuda --optimizers fused-adam"),
    Step("memory savers", "AMP O1 below 0.78 of the base's memory, in less time",
         "benchmarks/memory_savers.py --device cuda"),
)
# fmt: on


def run_step(step, folder):
    """Run one step, print its output as it comes and keep it; return (exit code, seconds)."""
    command = [sys.executable] + [part.format(folder=folder) for part in step.command.split()]
    print("\n== {}: {}\ntargets: {}".format(step.name, " ".join(command[1:]), step.targets), flush=True)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    start = time.time()
    options = {"cwd": str(ROOT), "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    path = folder / (step.name.replace(" ", "-") + ".txt")
    with open(str(path), "w", encoding="utf-8") as kept:
        kept.write(f"python {step.command}\ntargets: {step.targets}\n\n")
        with subprocess.Popen(command, universal_newlines=True, **options) as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                kept.write(line)
    return process.returncode, time.time() - start


def heading():
    """Return what the figures were measured on, or None without a GPU."""
    if not torch.cuda.is_available():
        return None
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return "{}, torch {}, CUDA {}, {}".format(
        ", ".join(names), torch.__version__, torch.version.cuda, datetime.date.today()
    )


def main(arguments=None):
    """Run the steps; return 1 if one failed, 2 without a GPU."""
    choices = {"only": [step.name for step in STEPS]}
    stated = bench.options(__doc__, arguments, choices, folder="gpu-results", only=[], list=False)
    steps = [step for step in STEPS if not stated.only or step.name in stated.only]
    if stated.list:
        for step in steps:
            print(f"{step.name}: python {step.command}\n    {step.targets}")
        return 0
    measured_on = heading()
    if measured_on is None:
        print("on_gpu.py: error: torch finds no CUDA device.", file=sys.stderr)
        return 2
    folder = pathlib.Path(stated.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "device.txt").write_text(measured_on + "\n", encoding="utf-8")
    print(measured_on)
    ended = [(step, run_step(step, folder)) for step in steps]
    print("\n" + measured_on)
    for step, (code, seconds) in ended:
        print(
            "{:18} {:7} {:6.0f} s   targets: {}".format(step.name, "FAILED" if code else "ran", seconds, step.targets)
        )
    return 1 if any(code for _, (code, _) in ended) else 0


if __name__ == "__main__":
    sys.exit(main())
