"""The benchmark of half on a CPU runs, and compares each level with O0 and with torch's own half."""

import importlib.util
import pathlib

import pytest
from helpers import half_kernels

if half_kernels.stand_in():
    pytest.skip("this torch has no half arithmetic to compare", allow_module_level=True)


def load():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "cpu_half.py"
    spec = importlib.util.spec_from_file_location("cpu_half_benchmark", str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_level_is_measured_beside_o0():
    figures = load().measure("lstm", ["O1", "O2"], rounds=1, steps=1)
    assert list(figures) == ["O0", "O1", "O2"]
    assert figures["O0"][1] == 1.0
    assert all(milliseconds > 0 and ratio > 0 for milliseconds, ratio in figures.values())
