"""Kill a series of ``ab`` at random moments, resume it each time, and compare it with one that was not interrupted.

    python tests/scripts/kill_and_resume.py [--moments 20] [--levels O0,O2] [--repeats 4] [--seed 0]

Prints a row for each moment, and exits with 1 if a loss differs, or a run that was in the file was begun again.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from ampcompat.abtest.report_data import Report

TRAINING = """
import os, sys
import torch
from apex import amp

with open(sys.argv[1], "a") as begun:
    begun.write("{} {}\\n".format(os.environ["AMPCOMPAT_OPT_LEVEL"], torch.initial_seed()))
model = torch.nn.Linear(4, 1)
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)
for step in range(25):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


def finished(path):
    """Return ``{label: losses}`` of the runs that a file has completely."""
    runs = {}
    for level, run in (Report.load(path).runs if os.path.exists(path) else {}).items():
        for repeat, each in enumerate([run] + run.repeats):
            if each.status in ("ok", "stopped"):
                runs[f"{level} {1000003 * repeat}"] = list(each.loss)
    return runs


def lines_of(path):
    """Return the lines of a file; none if it does not exist."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()


def killed_at(start, command, seconds):
    """Start a command and kill it after so many seconds; return whether it had ended before."""
    process = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def main(arguments=None, start=subprocess.Popen):
    """Return 0 if the losses are equal bit for bit and no finished run was begun again.

    Args:
        arguments: of the command line.
        start: what starts each command.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--levels", default="O0,O2")
    parser.add_argument("--repeats", default="4")
    parser.add_argument("--seed", type=int, default=0)
    stated = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _main(stated, folder, random.Random(stated.seed), start)


def _main(stated, folder, draws, start_command):
    script, path, begun = [os.path.join(folder, name) for name in ("training.py", "report.json", "begun")]
    with open(script, "w") as file:
        file.write(TRAINING)
    common = [sys.executable, "-m", "ampcompat", "ab", "--levels", stated.levels, "--repeats", stated.repeats]
    common += ["--no-control", "--no-memory", "--no-diagnose", "--timing-steps", "0"]
    start = time.monotonic()
    whole = os.path.join(folder, "whole.json")
    process = start_command(common + ["--json", whole, script, os.path.join(folder, "whole")], stdout=2, stderr=2)
    if process.wait() != 0:
        return 1
    duration, count, twice = time.monotonic() - start, len(finished(whole)), 0
    command = common + ["--resume", path, script, begun]
    print("moment  killed after  runs in the file  begun since  begun again")
    for moment in range(stated.moments + 1):
        seconds = draws.uniform(0, 1.5 * duration / count) if moment < stated.moments else None
        done, before = finished(path), len(lines_of(begun))
        ended = killed_at(start_command, command, seconds)
        new = lines_of(begun)[before:]
        again = [line for line in new if line in done]
        twice += len(again)
        told = "ended" if ended else f"{seconds:.2f} s"
        print(
            f"{moment:6d}  {told:>12s}  {len(finished(path)):16d}  {len(new):11d}  {len(again):11d}",
            flush=True,
        )
    expected, found = finished(whole), finished(path)
    equal = found == expected
    print("{} runs, losses bit for bit equal: {}".format(len(expected), "yes" if equal else "no"))
    return 0 if equal and not twice else 1


if __name__ == "__main__":
    sys.exit(main())
