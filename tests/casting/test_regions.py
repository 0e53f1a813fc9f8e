"""Backends that are confined to regions: casts on within one, in its thread, and nowhere else."""

import pytest
import torch
from helpers.threads import in_thread
from opened import call_checkpoint, each_setting, opened

from ampcompat.engine.casting import CastBackend


@pytest.fixture
def confined(setting):
    """A backend of the setting, open and confined."""
    with opened(setting, devices=None, is_regional=True) as backend:
        yield backend


def product_dtype(backend):
    """Return the dtype in which a product of two wide matrices comes out."""
    wide = torch.ones(2, 2, dtype=backend.dtypes.high)
    return torch.mm(wide, wide).dtype


@each_setting
def test_casts_hold_within_a_region_and_not_around_it(setting, confined):
    low, high = confined.dtypes
    assert product_dtype(confined) is high and not confined.active()
    with confined.region():
        assert product_dtype(confined) is low and confined.active()
        with confined.region():
            assert product_dtype(confined) is low
        assert product_dtype(confined) is low
    assert product_dtype(confined) is high


@each_setting
def test_innermost_of_region_and_pause_counts(setting, confined):
    low, high = confined.dtypes
    with confined.region():
        with confined.paused():
            assert product_dtype(confined) is high
            with confined.region():
                assert product_dtype(confined) is low
            assert product_dtype(confined) is high
        assert product_dtype(confined) is low
    with confined.paused(), confined.region():
        assert product_dtype(confined) is low


@each_setting
def test_region_belongs_to_its_thread_and_ends_when_its_body_raises(setting, confined):
    seen = []
    with pytest.raises(KeyError):
        with confined.region():
            seen.append(in_thread(lambda: product_dtype(confined)))
            raise KeyError
    assert seen == [confined.dtypes.high]
    assert product_dtype(confined) is confined.dtypes.high


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda':UserWarning")  # torch 1.12 on a CPU
@pytest.mark.parametrize("reentrant", (True, False))
@each_setting
def test_backward_runs_without_casts_and_checkpoints_recompute_within_the_region(setting, reentrant, confined):
    low, high = confined.dtypes
    weight = torch.ones(2, 2, dtype=high, requires_grad=True)
    seen = []

    def layer(x):
        seen.append(product_dtype(confined))  # first of all: a recomputation stops as soon as it has what it came for
        return torch.mm(x, weight).exp()

    x = torch.ones(2, 2, dtype=high, requires_grad=True)
    with confined.region():
        out = call_checkpoint(layer, reentrant, x)
    out.sum().backward()
    assert seen == [low, low] and weight.grad.dtype is high


def test_levels_without_casts_have_regions_that_do_nothing():
    casts = CastBackend()
    with casts.region():
        assert not casts.active()


@each_setting
def test_a_backend_can_be_stopped_before_it_is_undone(setting):
    with opened(setting) as backend:
        backend.stop()
        assert not backend.active()
    casts = CastBackend()
    casts.stop()
    assert not casts.active()
