"""The same script and seed give the same bits in every fresh process: nothing about numbers is decided by time."""

import os

import pytest
from helpers import forked, half_kernels
from helpers.processes import ROOT

SCRIPT = os.path.join(ROOT, "tests", "scripts", "same_numbers.py")


@pytest.mark.skipif(bool(half_kernels.stand_in()), reason="this torch cannot train in half on a CPU")
def test_fresh_processes_train_the_same_weights():
    first, second = [forked.run(forked.script, SCRIPT) for _ in range(2)]
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("O2 ") and second.stdout == first.stdout
