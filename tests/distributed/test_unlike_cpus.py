"""Ranks whose CPUs do not compute half alike say so when a model is wrapped, once, and name the remedy."""

import arithmetic_loops
import pytest
import torch
from helpers import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

UNLIKE, ALIKE = ("on", "off"), ("on", "on")
CASES = [("O1", "torch", UNLIKE), ("O2", "apex", UNLIKE), ("O5", "torch", UNLIKE), ("O4", "apex", UNLIKE)]
QUIET = [("O0", "torch", UNLIKE), ("O0", "apex", UNLIKE), ("O1", "apex", ALIKE), ("O2", "torch", ALIKE)]


@pytest.fixture(scope="module")
def told():
    return ranks.run(arithmetic_loops.all_cases, CASES + QUIET)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rank_says_once_which_rank_does_what(told, case):
    for rank in (0, 1):
        (sentence,) = told[rank][case]
        assert "emulated (computed in float32, inputs and results rounded) on rank 0" in sentence
        assert "torch's own kernels on rank 1" in sentence
        assert "Set AMPCOMPAT_HALF_MATH=on, or off, for all ranks." in sentence


@pytest.mark.parametrize("case", QUIET, ids=str)
def test_ranks_that_compute_alike_or_in_float32_say_nothing(told, case):
    assert told[0][case] == told[1][case] == []
