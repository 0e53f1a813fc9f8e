"""Counts of exponents are exact, and so are the fractions that float16 cannot represent."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_values import sparse_gradient

from ampcompat.trace.exponents import ExponentCounts
from ampcompat.trace.skipped_steps.gradient_histogram import Histogram

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


def counted(*tensors, **options):
    counter = ExponentCounts(**options)
    counter.update(tensors)
    return Histogram(*counter.read())


def exponent_of(value):
    """Return e of 2**e <= value < 2**(e + 1), exactly: frexp gives a fraction in [0.5, 1)."""
    return math.frexp(value)[1] - 1


@settings(max_examples=200, deadline=None)
@given(st.lists(floats, max_size=30))
def test_every_value_is_in_its_own_bin(values):
    expected = Histogram({})
    counts, zeros, nonfinite, overflows = {}, 0, 0, 0
    for value in values:
        if not math.isfinite(value):
            nonfinite += 1
        elif value == 0.0:
            zeros += 1
        else:
            overflows += abs(value) > 65504.0
            counts[exponent_of(abs(value))] = counts.get(exponent_of(abs(value)), 0) + 1
    expected = Histogram(counts, zeros, nonfinite, overflows)
    assert counted(torch.tensor(values, dtype=torch.float32)) == expected


@pytest.mark.parametrize("exponent", [-149, -126, -25, -24, -14, -1, 0, 15, 16, 127])
def test_powers_of_two_are_the_lower_ends_of_bins(exponent):
    value = torch.tensor([2.0**exponent], dtype=torch.float64)
    below = value * (1 - 2.0**-52)
    assert counted(value).counts == {exponent: 1}
    assert counted(below).counts == {exponent - 1: 1}


def test_fractions_by_hand():
    values = torch.tensor([0.0, 2.0**-30, 2.0**-25, -(2.0**-24), 2.0**-15, 2.0**-14, 1.0, 65504.0, 65505.0])
    histogram = counted(values)
    assert histogram.nonzero == 8 and histogram.zeros == 1
    assert histogram.underflow_fraction() == 2 / 8
    assert histogram.underflow_fraction(scale=2.0) == 1 / 8  # 2**-25 is 2**-24 then
    assert histogram.underflow_fraction(scale=64.0) == 0.0
    assert histogram.subnormal_fraction() == 2 / 8
    assert histogram.overflow_fraction() == 1 / 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(2.0**-60, 2.0**14, width=32), min_size=1, max_size=20))
def test_no_value_underflows_or_overflows_between_the_two_scales(values):
    histogram = counted(torch.tensor(values))
    least, most = histogram.min_lossless_scale(), histogram.max_safe_scale()
    assert min(values) * least >= 2.0**-24
    assert least == 1.0 or min(values) * least / 2 < 2.0**-24
    assert max(values) * most <= 65504.0 < max(values) * most * 4
    assert sum(value * most < 2.0**-24 for value in values) / len(values) == histogram.underflow_fraction(most)


@pytest.mark.parametrize(
    "values, text",
    [
        ([1.0, 0.5], "these gradients need no loss scaling"),
        ([2.0**-20], "no value underflows, but 100.0 % are subnormal; loss scales up to 2^34 are safe"),
        (
            [2.0**-26, 1.0],
            "50.0 % of the nonzero values underflow to 0; with a loss scale from 2^2 (4) to 2^14 (16384) none do",
        ),
        ([2.0**-60, 1.0], "with a loss scale of 2^14 (16384), the largest safe one, 50.0 % do"),
        ([1e6, 1.0], "50.0 % of the values are over 65504: float16 overflows at any scale"),
        ([float("inf"), 1.0], "1 values were inf or nan. Plain float16 can represent every value"),
        ([0.0], "No gradient was finite and other than 0."),
        ([0.0, float("nan")], "1 values were inf or nan. No gradient was finite and other than 0."),
    ],
)
def test_the_summary_says_whether_loss_scaling_is_needed(values, text):
    assert text in counted(torch.tensor(values, dtype=torch.float64)).summary()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(-150, 128), st.integers(1, 10**6), max_size=60))
def test_the_rows_of_the_table_contain_every_value(counts):
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


def test_a_sample_weights_each_value():
    histogram = counted(torch.ones(1000), torch.full((10,), 4.0), sample=100)
    assert histogram.counts == {0: 1000, 2: 10}


def test_sparse_and_other_dtypes_are_counted():
    histogram = counted(sparse_gradient(1.0), torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.int64))
    assert histogram.counts == {1: 1, 0: 2}
