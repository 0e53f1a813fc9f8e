"""Forensics under DistributedDataParallel: the rank that overflowed knows why, the others know that it was not they."""

import pytest
import torch

import forensics_loops
import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def test_every_rank_tells_what_it_knows_and_the_first_one_speaks():
    (first, said), (second, silent) = ranks.run(forensics_loops.explode_on_one)
    assert [step for step, _ in first] == [step for step, _ in second] == [1]
    assert "In the forward pass inf came first from module 1" in second[0][1]
    assert "The loss was finite" in first[0][1] and "It may have come from another rank, by averaging." in first[0][1]
    assert "ampcompat: step 1" in said and silent == ""
