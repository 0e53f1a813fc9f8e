"""Counts of exponents are exact, and say what float16 would make of the values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompat.parts.exponents import Counts, Histogram

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


def counted(*tensors, **options):
    counts = Counts(**options)
    counts.take_in(tensors)
    return counts.read()


def exponent_of(value):
    """Return e of 2**e <= value < 2**(e + 1), exactly: frexp gives a fraction in [0.5, 1)."""
    return math.frexp(value)[1] - 1


@settings(max_examples=200, deadline=None)
@given(st.lists(floats, max_size=30))
def test_every_value_is_in_its_own_bin(values):
    expected = Histogram({})
    counts, zeros, bad, over = {}, 0, 0, 0
    for value in values:
        if not math.isfinite(value):
            bad += 1
        elif value == 0.0:
            zeros += 1
        else:
            over += abs(value) > 65504.0
            counts[exponent_of(abs(value))] = counts.get(exponent_of(abs(value)), 0) + 1
    expected = Histogram(counts, zeros, bad, over)
    assert counted(torch.tensor(values, dtype=torch.float32)) == expected


@pytest.mark.parametrize("exponent", [-149, -126, -25, -24, -14, -1, 0, 15, 16, 127])
def test_powers_of_two_open_their_bin(exponent):
    value = torch.tensor([2.0**exponent], dtype=torch.float64)
    below = value * (1 - 2.0**-52)
    assert counted(value).counts == {exponent: 1}
    assert counted(below).counts == {exponent - 1: 1}


def sparse_gradient(factor):
    """Return a sparse gradient that holds ``factor`` twice at one place."""
    weight = torch.ones(3, 1, requires_grad=True)
    rows = torch.nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True)
    (rows.sum() * factor).backward()
    return weight.grad


def test_shares_by_hand():
    values = torch.tensor([0.0, 2.0**-30, 2.0**-25, -(2.0**-24), 2.0**-15, 2.0**-14, 1.0, 65504.0, 65505.0])
    histogram = counted(values)
    assert histogram.nonzero == 8 and histogram.zeros == 1
    assert histogram.lost() == 2 / 8
    assert histogram.lost(scale=2.0) == 1 / 8  # 2**-25 is 2**-24 then
    assert histogram.lost(scale=64.0) == 0.0
    assert histogram.subnormal() == 2 / 8
    assert histogram.overflowing() == 1 / 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(2.0**-60, 2.0**14, width=32), min_size=1, max_size=20))
def test_scales_keep_what_they_promise(values):
    histogram = counted(torch.tensor(values))
    keeping, fitting = histogram.keeping_scale(), histogram.fitting_scale()
    assert min(values) * keeping >= 2.0**-24
    assert keeping == 1.0 or min(values) * keeping / 2 < 2.0**-24
    assert max(values) * fitting <= 65504.0 < max(values) * fitting * 4
    assert sum(value * fitting < 2.0**-24 for value in values) / len(values) == histogram.lost(fitting)


@pytest.mark.parametrize(
    "values, words",
    [
        ([1.0, 0.5], "loss scaling is not needed"),
        ([2.0**-20], "make no value 0, but keep 100.0 % with fewer bits; a loss scale up to 2^34 fits"),
        ([2.0**-26, 1.0], "50.0 % of the nonzero values 0; a loss scale from 2^2 (4) to 2^14 (16384) keeps them all"),
        ([2.0**-60, 1.0], "a loss scale of 2^14 (16384), the most that fits, makes that 50.0 %"),
        ([1e6, 1.0], "50.0 % of the values are over 65504: float16 cannot hold them at any scale"),
        ([float("inf"), 1.0], "Values that were inf or nan: 1. Plain float16 would keep every value"),
        ([0.0], "No gradient but 0"),
    ],
)
def test_the_verdict_is_in_words(values, words):
    assert words in counted(torch.tensor(values, dtype=torch.float64)).verdict()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(-150, 128), st.integers(1, 10**6), max_size=60))
def test_the_rows_of_the_table_hold_every_value(counts):
    histogram = Histogram(counts)
    rows = histogram._rows()
    assert sum(count for _, _, count in rows) == histogram.nonzero
    assert [end for _, end, _ in rows][:-1] == [start for start, _, _ in rows][1:]
    assert len(histogram.table().splitlines()) < 45


def test_a_table_is_readable():
    table = counted(torch.tensor([0.0, 2.0**-26, 2.0**-26, 2.0**-20, 1.0]), torch.zeros(0)).table()
    assert table.splitlines()[:4] == [
        "Gradients by magnitude: 5 values, 20.0 % of them 0",
        "  under 2^-24, 0 in plain float16: 50.0 %",
        "    2^-26  to 2^-25   50.0 %  ########################################",
        "    2^-25  to 2^-24    0.0 %",
    ]


def test_a_sample_counts_each_value_for_its_neighbours():
    histogram = counted(torch.ones(1000), torch.full((10,), 4.0), sample=100)
    assert histogram.counts == {0: 1000, 2: 10}


def test_sparse_and_other_dtypes_are_counted():
    histogram = counted(sparse_gradient(1.0), torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.int64))
    assert histogram.counts == {1: 1, 0: 2}
