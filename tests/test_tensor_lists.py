"""Lists of tensors: the fused operations and the loops for older torch do the same."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from ampcompat.support import tensor_lists
from ampcompat.support.torch_compat import features as torch_facts

DTYPES = [torch.float32, torch.float64]


@pytest.fixture(params=["as installed", "without foreach"])
def features(request, monkeypatch):
    """Run on what the installed torch has, and as if it had no operations over lists."""
    if request.param == "without foreach":
        for name in ("has_foreach", "has_foreach_copy"):
            monkeypatch.setattr(torch_facts, name, lambda: False)
        monkeypatch.setattr(torch_facts, "has_foreach_unscale", lambda *args: False)


def test_multiply_reaches_every_tensor_of_every_dtype(features):
    values = [torch.full((3,), 2.0, dtype=dtype) for dtype in DTYPES]
    tensor_lists.multiply_(tensor_lists.grouped(values), 0.5)
    assert [value.tolist() for value in values] == [[1.0] * 3] * 2


def test_multiplying_nothing_is_fine(features):
    tensor_lists.multiply_([], 2.0)
    tensor_lists.add_([], [])
    tensor_lists.copy_([], [])


def test_add_and_copy_are_pairwise_and_copy_casts(features):
    totals = [torch.ones(2), torch.zeros(3, 2)]
    tensor_lists.add_(totals, [torch.ones(2), torch.ones(3, 2)])
    assert [total.sum().item() for total in totals] == [4.0, 6.0]
    targets = [torch.zeros(2), torch.zeros(3, 2)]
    tensor_lists.copy_(targets, [total.double() for total in totals])
    assert all(torch.equal(target, total) for target, total in zip(targets, totals))


special = st.sampled_from([float("inf"), float("-inf"), float("nan")])


@hypothesis.given(
    st.lists(st.lists(st.one_of(st.floats(-1e3, 1e3, width=32), special), max_size=4), min_size=1, max_size=4),
    st.sampled_from([1.0, 0.5, 2.0**-16]),
)
@hypothesis.settings(deadline=None, suppress_health_check=list(hypothesis.HealthCheck), max_examples=50)
def test_the_check_finds_inf_and_nan_and_nothing_else(features, rows, factor):
    values = [torch.tensor(row, dtype=torch.float32) for row in rows]
    expected = [value * factor for value in values]
    found = torch.zeros(())
    tensor_lists.check_and_scale_(values, factor, found)
    special_ones = [item for row in rows for item in row if item - item != 0.0]
    assert bool(found) == bool(special_ones)
    if not special_ones:
        assert all(torch.equal(value, right) for value, right in zip(values, expected))


def test_a_sum_that_overflows_is_no_overflow(features):
    value, found = torch.full((4,), 3e38), torch.zeros(())
    tensor_lists.check_and_scale_([value], 1.0, found)
    assert not found


def test_narrower_is_a_question_of_bytes():
    assert tensor_lists.is_narrower(torch.zeros(1, dtype=torch.float16), torch.float32)
    assert tensor_lists.is_narrower(torch.zeros(1), torch.float64)
    assert not tensor_lists.is_narrower(torch.zeros(1), torch.float32)
    assert not tensor_lists.is_narrower(torch.zeros(1, dtype=torch.int8), torch.float32)
