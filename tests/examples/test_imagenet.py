"""The ImageNet-style example: a script for CUDA and apex, unchanged, on the CPU."""

import os
import re
import socket

import pytest
import torch
from helpers import forked
from helpers.half_kernels import stand_in
from helpers.processes import ROOT, RUN, environment

SCRIPT = os.path.join(ROOT, "examples", "imagenet.py")
SMALL = ("--images", "128", "--size", "12", "--width", "8", "--epochs", "1", "-p", "2", "-j", "0", "--lr", "0.1")


def accuracies(output):
    """Return the percentage of right guesses after each epoch."""
    return [float(found) for found in re.findall(r"\* Loss [0-9.]+ Prec@1 ([0-9.]+)", output)]


def test_it_trains_saves_resumes_and_profiles(tmp_path):
    level = ("--opt-level", "O2", "--loss-scale", "dynamic", "--keep-batchnorm-fp32", "True", "--deterministic")
    env = environment(AMPCOMPAT_DEVICE="cpu", **stand_in("O2"))
    path = str(tmp_path / "checkpoint.pt")
    first = forked.run(forked.command, *((SCRIPT,) + SMALL + level + ("--checkpoint", path, "-j", "1")), env=env)
    assert first.returncode == 0, first.stderr
    assert "device: CPU in place of CUDA (ampcompat)" in first.stdout
    assert "Selected optimization level O2" in first.stdout
    assert len(re.findall(r"Epoch: \[0\]\[\d/4\]\tTime", first.stdout)) == 2 and os.path.exists(path + ".best")
    more = ("--resume", path, "--epochs", "2", "--prof", "1")
    again = forked.run(forked.command, *((SCRIPT,) + SMALL + level + more), env=env)
    assert again.returncode == 0, again.stderr
    assert "=> loaded checkpoint" in again.stdout and "Profiling ended at iteration 4" in again.stdout
    assert len(accuracies(first.stdout)) == len(accuracies(again.stdout)) == 1


def test_two_processes_of_a_launcher_train_it_with_one_batch_norm():
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    # What torchrun runs; older torch has only the launcher before it.
    # Older torch has only the launcher before torchrun.
    launcher = ("--standalone",) if _has_torchrun() else ("--use_env", "--master_port", _free_port())
    command = launcher + ("--nproc_per_node", "2") + RUN + (SCRIPT,) + SMALL + ("--opt-level", "O2", "--sync_bn")
    done = forked.run(forked.torchrun, *command, env=environment(AMPCOMPAT_DEVICE="cpu", **stand_in("O2")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Selected optimization level O2") == done.stdout.count("device: CPU") == 1
    assert re.search(r"Epoch: \[0\]\[2/2\]", done.stdout) and len(accuracies(done.stdout)) == 1


def _free_port():
    with socket.socket() as free:
        free.bind(("", 0))
        return str(free.getsockname()[1])


def _has_torchrun():
    import importlib.util

    return importlib.util.find_spec("torch.distributed.run") is not None
