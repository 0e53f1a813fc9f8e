"""float32 values as bfloat16 weights and remainders: every bit comes back, at ties too."""

import pytest
import torch
from helpers import half_kernels

from ampcompat.engine.masters import remainder_bits

if half_kernels.stand_in() or not hasattr(torch.Tensor, "untyped_storage"):
    pytest.skip("this torch has no bfloat16 arithmetic", allow_module_level=True)


def restored(values):
    """Return what is restored of the weights and the remainders of float32 values."""
    weights = values.to(torch.bfloat16).view(torch.int16)
    remainders, ties = remainder_bits.split(values, weights)
    found = remainder_bits.join(weights, remainders, ties)
    return found, ties


def patterns(first, last, step=1):
    return torch.arange(first, last, step, dtype=torch.int64).to(torch.int32).view(torch.float32)


def assert_restored(values):
    found, _ = restored(values)
    same = found.view(torch.int32) == values.view(torch.int32)
    assert bool((same | (found.isnan() & values.isnan())).all())


@pytest.mark.parametrize("first", [0, 0x3F7F0000, 0x7F7D0000, -0x80000000, -0x40010000, -0x00830000])
def test_every_value_around_powers_of_two_zero_and_infinity_is_restored(first):
    assert_restored(patterns(first, first + 0x40000))


def test_values_from_all_magnitudes_are_restored():
    assert_restored(patterns(-(2**31), 2**31, 2**12 - 1))


def test_the_tie_below_and_the_tie_above_an_even_weight_are_told_apart():
    values = patterns(0x3F818000, 0x3F838000, 0x10000)
    assert values.to(torch.bfloat16).view(torch.int16).tolist() == [0x3F82, 0x3F82]
    assert_restored(values)


@pytest.mark.parametrize("size,is_sparse", [(7, False), (20001, False), (400003, True)])
def test_many_ties_take_a_bit_for_each_element_and_few_ties_less(size, is_sparse):
    values = patterns(0x3F800000, 0x3F800000 + size)
    if not is_sparse:
        values = torch.full((size,), 1.0).view(torch.int32).add_(0x8000).view(torch.float32)
    found, ties = restored(values)
    assert torch.equal(found, values)
    held = sum(each.numel() * each.element_size() for each in ties.memory())
    assert held <= (100 if is_sparse else -(-size // 8))
