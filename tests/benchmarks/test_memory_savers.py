"""The benchmark of the memory savers: every combination has a row, and what is saved falls as it should."""

import importlib.util
import pathlib

import half_kernels
import pytest

from ampcompat.tables import torch_facts

if half_kernels.stand_in() or not torch_facts.has_nested_saved_tensor_hooks():
    pytest.skip("this torch has no half arithmetic, or cannot tell what autograd keeps", allow_module_level=True)


@pytest.fixture(scope="module")
def benchmark():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "memory_savers.py"
    spec = importlib.util.spec_from_file_location("memory_savers_benchmark", str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMALL = ["--rounds", "1", "--iterations", "1", "--size", "64", "--width", "8", "--blocks", "2"]


def test_every_combination_has_a_row_and_the_base_comes_first(benchmark, capsys):
    benchmark.main(SMALL + ["--levels", "O2"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("|")[1].strip() for line in lines[3:]]
    assert names[0] == "base" and names[-1] == "AMP O2 + accumulation x2 + checkpointing"
    assert len(set(names)) == 8


def test_half_and_checkpoints_each_save_and_together_more(benchmark):
    stated = benchmark.parse(SMALL + ["--same-batch"])
    kept = {}
    for choice in (("O0", 1, False), ("O2", 1, False), ("O0", 2, False), ("O0", 1, True), ("O2", 2, True)):
        peak, kept[choice] = benchmark.Row(*choice, stated).peak()
        assert peak > kept[choice] > 0
    base = kept["O0", 1, False]
    assert kept["O2", 1, False] < 0.65 * base
    assert kept["O0", 2, False] < 0.6 * base
    assert kept["O0", 1, True] < 0.6 * base
    assert kept["O2", 2, True] < 0.2 * base
