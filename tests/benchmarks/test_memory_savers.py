"""The benchmark of the memory savers: every combination has a row, and what is saved falls as it should."""

import pytest
from helpers import benchmark_files, half_kernels

from ampcompat.support.torch_compat import features

if half_kernels.stand_in() or not features.has_nested_saved_tensor_hooks():
    pytest.skip("this torch has no half arithmetic, or cannot tell what autograd keeps", allow_module_level=True)


@pytest.fixture(scope="module")
def benchmark():
    return benchmark_files.load("memory_savers")


SMALL = ["--rounds", "1", "--iterations", "1", "--size", "64", "--width", "8", "--blocks", "1", "--levels", "O2"]


def test_every_combination_has_a_row_and_the_base_comes_first(benchmark):
    names = [row.name for row in benchmark.rows_of(benchmark.parse(SMALL))]
    assert names[0] == "" and names[-1] == "AMP O2 + accumulation x2 + checkpointing"
    assert len(set(names)) == 10 and {"offloading", "AMP O2 + offloading"} < set(names)


def test_a_row_is_measured_beside_the_base(benchmark):
    rows = benchmark.rows_of(benchmark.parse(SMALL))[:2]
    peaks, times = {row.name: row.peak() for row in rows}, {row.name: [row.time()] for row in rows}
    cells = benchmark.cells_of(rows[0], rows[0], peaks, times)
    assert cells[0] == "base" and cells[6] == "1.00" and float(cells[7]) > 0 and cells[8] == "0.0"
    assert all(most > kept > 0 for most, kept in peaks.values())


def test_what_is_offloaded_leaves_the_predicted_gpu(benchmark):
    stated = benchmark.parse(SMALL)
    for level in ("O0", "O2"):
        kept, offloaded = (
            benchmark.Row(level, 1, False, stated, offloaded=offloaded).on_gpu() for offloaded in (False, True)
        )
        assert offloaded.peak_by_kind.activations == 0 < kept.peak_by_kind.activations
        assert kept.peak_by_kind.activations < offloaded.peak_by_kind.offloaded
        assert offloaded.peak_total < kept.peak_total
