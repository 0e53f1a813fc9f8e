"""Series for drawing: few enough points, with extremes and gaps kept."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from ampcompat.abtest.report import charts

VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=200)


def numbered(values):
    return list(enumerate(values))


@given(VALUES, st.integers(9, 60))
@example([0.0, 1.0, math.nan, 0.5, 0.5, 0.5] * 3 + [math.nan, 0.0], 10)
def test_thinned_points_are_few_in_order_and_hold_the_extremes(values, most):
    points = numbered(values)
    kept = charts.thinned(points, most)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert all(math.isnan(value) or value == values[step] for step, value in kept)
    assert len(kept) <= max(most, len(points) if len(points) <= most else most)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        left = [value for _, value in kept if math.isfinite(value)]
        assert (min(left), max(left)) == (min(finite), max(finite))
    if len(finite) < len(values):
        assert any(not math.isfinite(value) for _, value in kept)


@given(VALUES, st.integers(1, 30))
def test_smoothed_points_lie_between_their_neighbours(values, width):
    finite = [value for value in values if math.isfinite(value)]
    for step, value in charts.smoothed(numbered(values), width):
        if math.isfinite(values[step]):
            assert min(finite) - 1e-3 <= value <= max(finite) + 1e-3
        else:
            assert math.isnan(value)


@given(VALUES, st.integers(9, 60))
@example([math.nan, 0.0, 0.0, 0.0] * 4 + [math.nan, 0.0], 9)
def test_averaged_points_are_few_and_keep_the_mean_and_gaps(values, most):
    kept = charts.averaged(numbered(values), most)
    assert len(kept) <= max(most, 2)
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)
    assert any(not math.isfinite(value) for _, value in kept) == (not all(map(math.isfinite, values)))


def test_the_means_of_stretches_are_exact_even_where_a_sum_overflows():
    points = numbered([1e308] * 4 + [1.0, 3.0, 5.0, 7.0])
    assert charts.averaged(points, 4) == [(0, 1e308), (4, 4.0)]


def test_smoothing_is_the_mean_of_the_steps_around():
    points = numbered([0.0, 3.0, 6.0, 9.0, 0.0])
    assert charts.smoothed(points, 3) == [(0, 1.5), (1, 3.0), (2, 6.0), (3, 5.0), (4, 4.5)]


def test_a_huge_value_does_not_affect_the_mean_of_later_steps():
    points = numbered([1e300] * 3 + [1.0] * 20)
    assert charts.smoothed(points, 5)[-1] == (22, 1.0)


def test_a_smoothed_curve_keeps_its_gaps_when_it_is_thinned():
    values = [1.0] * 1000
    values[501] = math.nan
    assert any(math.isnan(value) for _, value in charts.smoothed(charts.averaged(numbered(values), 20), 5))
