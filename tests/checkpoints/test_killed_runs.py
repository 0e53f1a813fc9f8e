"""kill -9 in the middle of training: started again, a run ends where an undisturbed one ends, bit for bit."""

import builtins
import functools
import os
import random
import re
import signal

import pytest
import torch
from helpers import forked
from helpers.half_kernels import stand_in
from helpers.nested import same
from helpers.processes import ROOT, environment

STEPS = 120
EXAMPLE = os.path.join(ROOT, "examples", "resume.py")


def arguments(level, path):
    return EXAMPLE, "--opt-level", level, "--checkpoint", str(path), "--steps", str(STEPS), "--every", "7"


def killed(level, path, step):
    """Start a run that is killed in the steps after ``step``."""
    process = forked.start(killed_after, step, *arguments(level, path), env=environment(**stand_in(level)))
    process.join()
    assert process.exitcode == -signal.SIGALRM


def killed_after(step, *arguments):
    """Do what ``ampcompat run ARGUMENTS`` does, and be killed at most 5 ms after a step.

    By SIGALRM, which nothing handles, so that it ends a process as SIGKILL does. On a busy machine, another process
    might send its signal after the last step.
    """

    def print_and_time(text, **options):
        if text.startswith(f"step {step} "):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.005))

    builtins.print = print_and_time
    forked.command(*arguments)


def finished(level, path):
    """Run to the end and return the output."""
    done = forked.run(forked.command, *arguments(level, path), env=environment(**stand_in(level)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbered(checkpoint):
    """Return the checkpoint with params of the optimizer by number; torch 1.3 names them by their addresses."""
    optimizer = checkpoint["optimizer"]
    addresses = [address for group in optimizer["param_groups"] for address in group.pop("params")]
    optimizer["state"] = {addresses.index(address): state for address, state in optimizer["state"].items()}
    return checkpoint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function: level -> (what an undisturbed run printed, its last checkpoint), run once per level."""

    @functools.lru_cache(maxsize=None)
    def run(level):
        path = tmp_path_factory.mktemp(level) / "whole.pt"
        return finished(level, path), numbered(torch.load(str(path)))

    return run


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that ends a process")
@pytest.mark.parametrize("each, kills", [("O1", [(30, 80)]), ("O2", [(1, 30), (50, 80)])])
def test_a_killed_run_ends_where_an_undisturbed_one_ends(each, kills, undisturbed, tmp_path):
    whole, expected = undisturbed(each)
    steps = [random.randrange(*between) for between in kills]
    for step in steps:
        killed(each, tmp_path / "killed.pt", step)
    said = finished(each, tmp_path / "killed.pt")
    first = int(re.search(r"resumed after step (\d+)", said).group(1))
    last = [line for line in whole.splitlines() if line.startswith("step")]
    assert [line for line in said.splitlines() if line.startswith("step")] == last[first:], steps
    found = numbered(torch.load(str(tmp_path / "killed.pt")))
    assert found["step"] == STEPS
    assert same(found, expected), steps


def test_the_example_learns(undisturbed):
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", undisturbed("O2")[0])]
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])
