"""Where autocast itself casts as the op table says, the wrappers leave it to autocast; half is not emulated here."""

import pytest
import torch
import torch.nn.functional as F
from helpers import benchmark_files
from opened import NATIVE, each_native, opened

from ampcompat.engine.op_table import expansion
from ampcompat.support.torch_compat import features

IS_RECORDED = bool(expansion.rows_of_autocast(features.version(), ["cpu"]))


@pytest.fixture(autouse=True)
def half_is_not_emulated(monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "off")


@pytest.fixture
def benchmark():
    return benchmark_files.load("calls_per_forward")


@pytest.mark.skipif(not (IS_RECORDED and len(NATIVE) == 2), reason="autocast of this torch is not recorded")
@pytest.mark.parametrize("level", ["O1", "O4"])
def test_a_forward_pass_of_four_encoder_layers_makes_at_most_60_python_calls(level, benchmark):
    assert sum(benchmark.calls_at(level, "native").values()) <= 60


def test_a_release_without_a_record_leaves_nothing_to_autocast():
    assert expansion.rows_of_autocast("1.0.0", ["cpu"]) == frozenset()
    assert expansion.rows_of_autocast(features.version(), ["cpu", "unknown"]) == frozenset()
    assert expansion.rows_of_autocast(features.version(), []) == frozenset()


@each_native
def test_change_of_an_input_that_is_trained_is_seen_between_two_uses(setting):
    linear, x = torch.nn.Linear(4, 3, bias=False), torch.zeros(2, 4, requires_grad=True)
    with opened(setting) as backend, backend.entered():
        linear(x)
        x.detach().fill_(2.0)
        expected = linear(x.detach())
        assert bool(expected.any()) and bool((linear(x) == expected).all())


@each_native
def test_region_of_another_dtype_within_forward_gets_copies_in_its_dtype(setting):
    other = torch.bfloat16 if setting.low is torch.float16 else torch.float16
    if other not in features.autocast_dtypes("cpu"):
        pytest.skip("autocast of this torch does not support the other dtype")
    linear, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    with opened(setting) as backend, backend.entered():
        assert linear(x).dtype is setting.low
        with torch.autocast("cpu", dtype=other):
            assert linear(x).dtype is other
        assert linear(x).dtype is setting.low


@each_native
def test_float64_is_cast_too(setting):
    linear, x = torch.nn.Linear(4, 3), torch.ones(2, 4, dtype=torch.float64)
    with opened(setting) as backend, backend.entered():
        assert linear(x).dtype is F.linear(x, weight=linear.weight).dtype is setting.low
