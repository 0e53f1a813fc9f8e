"""Statistics of values against those computed in Python."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompat.observers.values import NamedScalars, max_abs, nonfinite_kind, read_together

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


def by_hand(values):
    return float("nan") if any(map(math.isnan, values)) else max(map(abs, values))


def same(first, second):
    return first == second or (math.isnan(first) and math.isnan(second))


@given(st.lists(numbers, min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_max_abs_is_that_computed_in_python(values):
    assert same(max_abs(torch.tensor(values, dtype=torch.float32)).item(), by_hand(values))


def sparse_gradient(factor):
    """Return a sparse gradient that holds ``factor`` twice at one place."""
    weight = torch.ones(3, 1, requires_grad=True)
    rows = torch.nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True)
    (rows.sum() * factor).backward()
    return weight.grad


def test_max_abs_without_floating_values_is_none():
    assert max_abs(torch.zeros(0)) is None
    assert max_abs(torch.ones(2, dtype=torch.int64)) is None


def test_a_sparse_tensor_is_coalesced():
    assert max_abs(sparse_gradient(1.5)).item() == 3.0


def test_max_abs_has_no_graph():
    tensor = torch.ones(2, requires_grad=True)
    assert not max_abs(tensor * 2).requires_grad


def test_nonfinite_kind_is_nan_inf_or_none():
    assert [nonfinite_kind(value) for value in (1.0, float("-inf"), float("nan"))] == [None, "inf", "nan"]


def test_named_scalars_keep_names_and_order_over_dtypes():
    named = [("a", torch.tensor(3.0)), ("b", torch.tensor(5.0, dtype=torch.float64)), ("a", torch.tensor(7.0))]
    assert NamedScalars(named, torch.float32, 2.0).read() == [("a", 1.5), ("b", 2.5), ("a", 3.5)]
    assert NamedScalars([]).read() == []


def test_numbers_that_are_read_together_keep_their_order_over_dtypes_and_shapes():
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor(3), torch.tensor([[4.0], [5.0]]), torch.tensor([])]
    assert read_together(tensors) == [[1.0, 2.0], [3], [4.0, 5.0], []]
    assert read_together([]) == []
