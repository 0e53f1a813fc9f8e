"""Gradients of half params on their way to the masters: the memory that they share, and who may keep it."""

import pytest
import torch
from helpers.precision import HIGH, LOW

from ampcompat.engine.optimizers import gradient_pool, half_and_master_chunks
from ampcompat.support.torch_compat import features

needs_pools = pytest.mark.skipif(
    not features.counts_storage_uses(), reason="this torch does not tell who shares a memory: there are no pools"
)
SHAPES = [(3, 5), (7,), (), (1, 2, 3)]


def make_pairs(shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    masters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(HIGH)) for shape in shapes]
    return [(torch.nn.Parameter(master.detach().to(LOW)), master) for master in masters]


def give(chunk, factor=1.0):
    """Give every model param a gradient and return what they are in float64."""
    for index, model in enumerate(chunk.models):
        model.grad = torch.full_like(model, factor * (index + 1))
    return [model.grad.double() for model in chunk.models]


def halve_(groups):
    """Unscale: through the groups, seen in the masters' gradients."""
    for group in groups:
        for tensor in group:
            tensor.mul_(0.5)


def taken(chunk):
    """Move the gradients to the masters; return them, and set them to None, as a step does."""
    chunk.move_gradients(halve_)
    gradients = [master.grad for master in chunk.masters]
    for master in chunk.masters:
        master.grad = None
    return gradients


def check(copies, given):
    assert all(gradient.dtype is HIGH for gradient in copies)
    assert all(torch.equal(gradient.double(), 0.5 * value) for gradient, value in zip(copies, given))


@pytest.mark.parametrize("shapes", [SHAPES, [(2000, 600), (3, 3)]], ids=["small", "large and small"])
def test_gradients_come_out_in_the_masters_dtype_and_are_taken_away(shapes):
    for chunk in half_and_master_chunks.chunks_of(make_pairs(shapes)):
        for factor in (1.0, 2.0, 3.0):
            given = give(chunk, factor)
            check(taken(chunk), given)
            assert all(model.grad is None for model in chunk.models)
            assert taken(chunk) == [None] * len(chunk.masters)


def test_params_without_a_gradient_are_left_out():
    (chunk,) = half_and_master_chunks.chunks_of(make_pairs())
    give(chunk)
    chunk.models[1].grad = None
    assert [gradient is None for gradient in taken(chunk)] == [index == 1 for index in range(len(SHAPES))]


@needs_pools
def test_the_memory_of_small_gradients_is_used_again():
    (chunk,) = half_and_master_chunks.chunks_of(make_pairs())
    give(chunk)
    first = [gradient.data_ptr() for gradient in taken(chunk)]
    give(chunk)
    assert [gradient.data_ptr() for gradient in taken(chunk)] == first
    assert all(address % 64 == 0 for address in first)


KEEPERS = {
    "the gradient": lambda gradient: gradient,
    "a detached one": lambda gradient: gradient.detach(),
    "its data": lambda gradient: gradient.data,
    "a view": lambda gradient: gradient.view(-1)[:3],
    "an array": lambda gradient: gradient.numpy(),
    "a container": lambda gradient: {"kept": [gradient]},
    "another param's": lambda gradient: keep_in_param(gradient),
}


def keep_in_param(gradient):
    param = torch.nn.Parameter(torch.zeros_like(gradient))
    param.grad = gradient
    return param


def value_of(kept):
    if isinstance(kept, dict):
        kept = kept["kept"][0]
    if isinstance(kept, torch.nn.Parameter):
        kept = kept.grad
    return float(kept.reshape(-1)[0])


@needs_pools
@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS)
def test_what_somebody_keeps_of_a_gradient_stays_as_it_was(keeper):
    (chunk,) = half_and_master_chunks.chunks_of(make_pairs())
    give(chunk)
    index = [master.numel() for master in chunk.masters].index(15)
    kept = keeper(taken(chunk)[index])
    before = value_of(kept)
    for factor in (10.0, 20.0):
        given = give(chunk, factor)
        check(taken(chunk), given)
        assert value_of(kept) == before


@needs_pools
def test_gradients_that_masters_still_have_are_added_to_and_not_written_over():
    (chunk,) = half_and_master_chunks.chunks_of(make_pairs())
    give(chunk)
    chunk.move_gradients(halve_)
    before = [master.grad.clone() for master in chunk.masters]
    given = give(chunk, 7.0)
    chunk.move_gradients(halve_)
    check([master.grad - value for master, value in zip(chunk.masters, before)], given)


def test_at_most_so_many_elements_share_a_pool(monkeypatch):
    monkeypatch.setattr(gradient_pool, "LARGEST_POOL", 64)
    found = half_and_master_chunks.chunks_of(make_pairs([(16,), (16,), (40,), (3,), (100,)]))
    assert sorted(len(chunk.masters) for chunk in found)[-1] == (3 if features.counts_storage_uses() else 5)
