"""kill -9 in the middle of training: started again, a run ends where an undisturbed one ends, to the bit."""

import functools
import os
import random
import re
import signal

import forked
import pytest
import torch
from half_kernels import stand_in
from processes import ROOT, environment

STEPS = 200
EXAMPLE = os.path.join(ROOT, "examples", "resume.py")


def arguments(level, path):
    return EXAMPLE, "--opt-level", level, "--checkpoint", str(path), "--steps", str(STEPS), "--every", "7"


def killed(level, path, step):
    """Start a run, kill it when it prints that ``step`` is done."""
    pipe = "{}.step{}".format(path, step)
    os.mkfifo(pipe)
    process = forked.start(forked.command, *arguments(level, path), stdout=pipe, env=environment(**stand_in(level)))
    with open(pipe) as printed:
        for line in printed:
            if line.startswith("step {} ".format(step)):
                os.kill(process.pid, signal.SIGKILL)
                break
    process.join()
    assert process.exitcode == -signal.SIGKILL


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


def differing(first, second, name=""):
    """Return where two nested states differ by a bit."""
    if isinstance(first, torch.Tensor):
        return [] if first.dtype is second.dtype and torch.equal(first, second) else [name]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [name]
        return [found for key in first for found in differing(first[key], second[key], "{}.{}".format(name, key))]
    if isinstance(first, (list, tuple)):
        return differing(dict(enumerate(first)), dict(enumerate(second)), name)
    return [] if first == second else [name]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function: level -> (what an undisturbed run printed, its last checkpoint), run once per level."""

    @functools.lru_cache(maxsize=None)
    def run(level):
        path = tmp_path_factory.mktemp(level) / "whole.pt"
        return finished(level, path), numbered(torch.load(str(path)))

    return run


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("each, kills", [("O1", [(30, 100)]), ("O2", [(1, 30), (30, 100)])])
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
    assert differing(found, expected) == [], steps


def test_the_example_learns(undisturbed):
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", undisturbed("O2")[0])]
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])
