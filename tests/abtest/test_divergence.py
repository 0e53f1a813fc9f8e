"""The divergence of losses and the noise between seeds, compared with values computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcompat.abtest import Run, divergence


def run_of(*values, **others):
    return Run(loss=[(step, 0, value) for step, value in enumerate(values)], **others)


def test_a_divergence_is_relative_to_the_baseline_but_not_to_less_than_its_median_loss():
    # The median of |8, 4, 2, 0.5, 0.5| is 2: above it the loss of the step counts, below it the median.
    found = divergence.between(run_of(10.0, 3.0, 2.0, 1.0, 0.25), run_of(8.0, 4.0, 2.0, 0.5, 0.5))
    assert found == {0: 2 / 8, 1: 1 / 4, 2: 0.0, 3: 0.5 / 2, 4: 0.25 / 2}


def test_a_loss_that_is_not_finite_diverges_infinitely_and_such_a_baseline_is_left_out():
    found = divergence.between(run_of(1.0, math.nan, -math.inf, 5.0, 1.0), run_of(1.0, 1.0, 1.0, math.nan, 1.0))
    assert found == {0: 0.0, 1: math.inf, 2: math.inf, 4: 0.0}


def test_a_baseline_of_zeros_is_not_a_division_by_zero():
    assert divergence.between(run_of(0.0, 1.0, 0.0), run_of(0.0, 0.0, 0.0)) == {0: 0.0, 1: math.inf, 2: 0.0}


def test_of_several_losses_the_largest_divergence_counts():
    run, baseline = Run(loss=[(0, 0, 2.0), (0, 1, 30.0)]), Run(loss=[(0, 0, 1.0), (0, 1, 20.0)])
    assert divergence.between(run, baseline) == {0: 1.0}


def test_steps_that_one_of_the_two_lacks_are_left_out():
    assert list(divergence.between(run_of(1.0), run_of(1.0, 1.0))) == [0]


def test_a_level_with_repeats_is_paired_by_seed():
    level, baseline = run_of(1.0, repeats=[run_of(30.0)]), run_of(2.0, repeats=[run_of(20.0)])
    assert divergence.of_level(level, baseline) == {0: (0.5 + 0.5) / 2}


def test_noise_is_the_mean_over_pairs_of_baseline_runs():
    # The later run of a pair is the reference: |4-2|/2, |4-1|/1, |2-1|/1.
    baseline = run_of(4.0, repeats=[run_of(2.0), run_of(1.0)])
    assert divergence.noise(baseline) == {0: pytest.approx((2 / 2 + 3 / 1 + 1 / 1) / 3)}


def test_noise_is_averaged_over_neighbouring_steps():
    baseline = run_of(2.0, 1.0, 1.0, 1.0, repeats=[run_of(1.0, 1.0, 1.0, 1.0)])
    assert divergence.noise(baseline) == {0: 1 / 2, 1: pytest.approx(1 / 3), 2: 0.0, 3: 0.0}


def test_a_single_run_has_no_noise():
    assert divergence.noise(run_of(1.0, 2.0)) == {}


def test_beyond_the_noise_nothing_is_negative():
    assert divergence.beyond({0: 0.3, 1: 0.1, 2: 9.0}, {0: 0.2, 1: 0.2}) == {0: pytest.approx(0.1), 1: 0.0}


def test_scatter_is_the_step_to_step_change():
    # |1-2|/2, |3-1|/max(1, median of 2, 1) = 2/1.5
    assert divergence.scatter(run_of(2.0, 1.0, 3.0)) == pytest.approx((1 / 2 + 2 / 1.5) / 2)
    assert divergence.scatter(run_of(2.0)) is None


@given(
    st.lists(st.integers(-1000000, 1000000).map(lambda each: each / 1000), min_size=1, max_size=8), st.floats(1e-3, 1e3)
)
def test_a_unit_does_not_matter(values, unit):
    run, baseline = run_of(*values), run_of(*reversed(values))
    scaled = divergence.between(run_of(*[v * unit for v in values]), run_of(*[v * unit for v in reversed(values)]))
    plain = divergence.between(run, baseline)
    assert scaled == {step: pytest.approx(value, rel=1e-6, abs=1e-9) for step, value in plain.items() if step in scaled}
