"""The benchmark of the seeds' networks runs, and every way of training gives the loss of plain float32."""

import argparse

import pytest
import torch
from helpers import benchmark_files, half_kernels

if half_kernels.stand_in() or not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
    pytest.skip("this torch has no mixed precision of its own to compare with", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def rows():
    """Import the package of the rows in the process that runs this file, and not wherever tests are collected."""
    pytest.importorskip("sklearn", reason="the rows come with scikit-learn")


def test_every_way_of_training_the_table_follows_float32(capsys):
    benchmark = benchmark_files.load("seed_networks")
    ways = [way for way in benchmark.WAYS if way != "O3"]  # Adam's epsilon is 0 in half
    stated = argparse.Namespace(ways=ways, rounds=1, steps=3, device="cpu", dtype="float16")
    found = benchmark.measure(benchmark.Tabular, stated)
    plain = found["float32"][1][0]
    for way in ways:
        assert found[way][1][0] == pytest.approx(plain, rel=0.05)
        assert found[way][2][0][0] > 0
    benchmark.print_table(benchmark.Tabular, found, stated)
    assert len(capsys.readouterr().out.splitlines()) == 4 + len(ways)
