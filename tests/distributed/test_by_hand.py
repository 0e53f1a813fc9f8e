"""Weights that ranks share by hand after ``amp.initialize`` are what they train."""

import by_hand_loops
import pytest
import torch
from helpers import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

LEVELS = ("O0", "O1", "O2", "O3", "O5")


@pytest.mark.parametrize("way", sorted(by_hand_loops.WAYS))
def test_ranks_that_broadcast_by_hand_train_one_model(way):
    first, second = ranks.run(by_hand_loops.broadcast_by_hand, LEVELS, way)
    for level in LEVELS:
        assert all(torch.equal(first[level][name], second[level][name]) for name in first[level]), level


def test_weights_initialized_before_wrapping_are_what_every_rank_gets():
    for found in ranks.run(by_hand_loops.init_before_wrapping, ("O2", "O5")):
        for level, masters in found.items():
            assert all(bool((master == 0.25).all()) for master in masters), level


def test_masters_keep_their_low_bits_when_a_layer_is_replaced():
    for found in ranks.run(by_hand_loops.layer_replaced_after_a_step, ("O2", "O5")):
        for level, (before, after) in found.items():
            assert len(before) == 2 and all(map(torch.equal, before, after)), level
