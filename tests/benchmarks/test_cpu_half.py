"""The benchmark of half on a CPU runs, and compares each level with O0."""

import pytest
from helpers import benchmark_files, half_kernels

if half_kernels.stand_in():
    pytest.skip("this torch has no half arithmetic to compare", allow_module_level=True)


def test_each_level_is_measured_beside_o0():
    figures = benchmark_files.load("cpu_half").measure("lstm", ["O1", "O2"], rounds=1, steps=1)
    assert list(figures) == ["O0", "O1", "O2"]
    assert figures["O0"][1] == 1.0
    assert all(milliseconds > 0 and ratio > 0 for milliseconds, ratio in figures.values())
