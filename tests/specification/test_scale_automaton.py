"""Specification 3.5 and 7.7: the dynamic loss scale as an automaton that never reaches 0."""

import pytest
import torch
from helpers.networks import ScaleReference
from hypothesis import HealthCheck, given, settings, strategies

from ampcompat.engine.loss_scaling.loss_scaler import LossScaler

briefly = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
overflows = strategies.lists(strategies.booleans(), max_size=40)
bounds = strategies.sampled_from([None, 1.0, 2.0**14, 2.0**16]), strategies.sampled_from([2.0**16, 2.0**17, 2.0**24])


def numbers(scaler):
    return scaler.loss_scale(), scaler._unskipped


def advance(scaler, overflowed):
    scaler.unscale_([[torch.tensor([1.0, float("inf") if overflowed else 2.0])]], scaler.loss_scale())
    return scaler.update_scale()


@briefly
@given(pattern=overflows, window=strategies.integers(1, 5), smallest=bounds[0], largest=bounds[1])
def test_scale_follows_the_automaton(pattern, window, smallest, largest):
    scaler = LossScaler("dynamic", scale_window=window, min_loss_scale=smallest, max_loss_scale=largest)
    reference = ScaleReference(window, smallest, largest)
    assert numbers(scaler) == (reference.scale, reference.unskipped)
    for overflowed in pattern:
        assert advance(scaler, overflowed) is overflowed
        reference.update(overflowed)
        assert numbers(scaler) == (reference.scale, reference.unskipped)


@briefly
@given(pattern=overflows, window=strategies.integers(1, 5), cut=strategies.integers(0, 40))
def test_a_saved_scaler_goes_on_as_the_saved_one(pattern, window, cut):
    first, second = (LossScaler("dynamic", scale_window=window) for _ in range(2))
    for overflowed in pattern[:cut]:
        advance(first, overflowed)
    second.load_state_dict(first.state_dict())
    for overflowed in pattern[cut:]:
        advance(first, overflowed)
        advance(second, overflowed)
    assert first.state_dict() == second.state_dict()


def test_the_scale_doubles_after_exactly_2000_good_steps():
    scaler = LossScaler("dynamic")
    for _ in range(1999):
        scaler.update_scale()
    assert numbers(scaler) == (2.0**16, 1999)
    scaler.update_scale()
    assert numbers(scaler) == (2.0**17, 0)


def test_persistent_overflows_never_bring_the_scale_to_zero_or_below_normal_numbers():
    scaler = LossScaler("dynamic")
    for _ in range(1200):
        advance(scaler, True)
    assert scaler.loss_scale() >= torch.finfo(torch.float32).tiny
    advance(scaler, False)
    assert numbers(scaler)[1] == 1


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_a_static_scale_stays(scale):
    scaler = LossScaler(scale)
    for overflowed in [True, False] * 3:
        assert advance(scaler, overflowed) is False
        assert scaler.loss_scale() == scale
