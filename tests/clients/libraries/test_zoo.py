"""Public optimizers, schedulers, architectures, a sample drawn by the commit: they train as ``benchmarks`` says."""

import os

import pytest
from helpers import client_modules, processes

client_modules.imported("torchvision.models", "libraries")
client_modules.imported("transformers", "libraries")


@pytest.mark.parametrize("zoo", ["optimizer_zoo.py", "scheduler_zoo.py", "zoo.py"])
def test_a_drawn_sample_trains_as_the_table_says(zoo):
    done = processes.python(os.path.join(processes.ROOT, "benchmarks", zoo), "--draw", "15")
    assert done.returncode == 0, done.stdout + done.stderr
