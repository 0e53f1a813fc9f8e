"""DistributedDataParallel of torch and of Apex over two gloo processes, at every level."""

import ddp_loops
import pytest
import torch
from helpers import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
#: Of the largest weight: the ranks round their halves of a gradient, the single process rounds the whole.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 4e-3, "O4": 1.6e-2, "O5": 1.6e-2}


each_wrapper = pytest.mark.parametrize("wrapper", list(ddp_loops.WRAPPERS))


@each_wrapper
def test_ranks_that_began_apart_train_alike_and_as_one_process_does_on_the_joint_batch(wrapper):
    first, second = ranks.run(ddp_loops.own_seeds, LEVELS, wrapper)
    for level in LEVELS:
        assert first[level][0] == second[level][0]
        for name, expected in ddp_loops.one_process(level)[2].items():
            found = first[level][2][name]
            assert torch.equal(found, second[level][2][name]), level
            assert found.dtype is expected.dtype
            assert (found - expected).abs().max() <= TOLERANCE[level] * expected.abs().max(), level


@each_wrapper
def test_an_overflow_on_one_rank_skips_on_both(wrapper):
    first, second = ranks.run(ddp_loops.own_seeds, ("O1", "O2"), wrapper, 1)
    for level in ("O1", "O2"):
        assert first[level][1] == second[level][1] == [False, True, False, False]
        assert first[level][0] == second[level][0] == 2.0**15
        assert all(torch.equal(value, second[level][2][name]) for name, value in first[level][2].items())
