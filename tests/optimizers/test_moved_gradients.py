"""Gradients of half params on their way to the masters, and what a script keeps of them."""

import pytest
import torch
from helpers.precision import HIGH, LOW

from ampcompat.engine.masters.master_chunk import MasterChunk
from ampcompat.support import tensor_lists
from ampcompat.support.unversioned_writes import WrittenMemory

SHAPES = [(3, 5), (7,), (), (1, 2, 3)]


def make_pairs(shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    masters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(HIGH)) for shape in shapes]
    return [(torch.nn.Parameter(master.detach().to(LOW)), master) for master in masters]


def chunks_of(pairs):
    return [MasterChunk(chunk, WrittenMemory()) for chunk in tensor_lists.chunked(pairs)]


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
    with torch.no_grad():
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
    for chunk in chunks_of(make_pairs(shapes)):
        for factor in (1.0, 2.0, 3.0):
            given = give(chunk, factor)
            check(taken(chunk), given)
            assert all(model.grad is None for model in chunk.models)
            assert taken(chunk) == [None] * len(chunk.masters)


def test_params_without_a_gradient_are_left_out():
    (chunk,) = chunks_of(make_pairs())
    give(chunk)
    chunk.models[1].grad = None
    assert [gradient is None for gradient in taken(chunk)] == [index == 1 for index in range(len(SHAPES))]


def test_what_somebody_keeps_of_a_gradient_stays_as_it_was():
    (chunk,) = chunks_of(make_pairs())
    give(chunk)
    kept = taken(chunk)
    before = [gradient.clone() for gradient in kept]
    give(chunk, 10.0)
    taken(chunk)
    assert all(map(torch.equal, kept, before))


def test_gradients_that_masters_still_have_are_added_to_and_not_written_over():
    (chunk,) = chunks_of(make_pairs())
    give(chunk)
    chunk.move_gradients(halve_)
    before = [master.grad.clone() for master in chunk.masters]
    given = give(chunk, 7.0)
    chunk.move_gradients(halve_)
    check([master.grad - value for master, value in zip(chunk.masters, before)], given)
