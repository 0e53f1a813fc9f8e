"""The same script and seed give the same bits in every fresh process: nothing about numbers is decided by time."""

import os

import half_kernels
import pytest
from processes import ROOT, environment, python

SCRIPT = os.path.join(ROOT, "tests", "scripts", "same_numbers.py")


@pytest.mark.skipif(bool(half_kernels.stand_in()), reason="this torch cannot train in half on a CPU")
def test_fresh_processes_train_the_same_weights():
    done = python(SCRIPT, "--processes", "2", env=environment(OMP_NUM_THREADS="2"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2 of 2 processes: O2 ")
