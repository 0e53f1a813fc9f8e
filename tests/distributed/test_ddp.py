"""DistributedDataParallel over two gloo processes, at every level."""

import ddp_loops
import pytest
import torch
from helpers import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
#: Of the largest weight: the ranks round their halves of a gradient, the single process rounds the whole.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 4e-3, "O4": 1.6e-2, "O5": 1.6e-2}


@pytest.fixture(scope="module")
def trained():
    return ranks.run(ddp_loops.all_levels, LEVELS, None)


@pytest.fixture(scope="module")
def overflowed():
    return ranks.run(ddp_loops.all_levels, LEVELS, 1)


@pytest.mark.parametrize("each", LEVELS)
def test_two_ranks_train_as_one_process_does_on_the_joint_batch(trained, each):
    alone = ddp_loops.one_process(each)[2]
    together = trained[0][each][2]
    for name in alone:
        assert (alone[name] - together[name]).abs().max() <= TOLERANCE[each] * alone[name].abs().max()


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_an_overflow_on_one_rank_skips_on_both(overflowed, each):
    first, second = (result[each] for result in overflowed)
    assert first[1] == second[1] == [False, True, False, False]
    assert first[0] == second[0] == 2.0**15
    for name in first[2]:
        assert torch.equal(first[2][name], second[2][name])


def test_ranks_that_began_with_other_seeds_agree_masters_and_all():
    first, second = ranks.run(ddp_loops.own_seeds, LEVELS)
    for each in LEVELS:
        assert all(torch.equal(first[each][name], second[each][name]) for name in first[each]), each
