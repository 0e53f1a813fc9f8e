"""DistributedDataParallel, sharding and other ways to spread a training over ranks, next to one process."""

import other_ways_loops as loops
import pytest
import torch
from helpers import half_kernels, precision, ranks, sharding
from sharded_loops import late_shards

from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

WRAPPED = ("wrapped_by_torch", "wrapped_by_apex")
WAYS = {
    **dict.fromkeys(WRAPPED, ("O0", "O1", "O2", "O3", "O4", "O5")),
    **dict.fromkeys(("sharded_state", "compressed"), ("O1", "O2", "O5")),
    **dict.fromkeys(("sharded", "split_layers"), ("O0", "O1", "O4")),
    "sharded_in_half": ("O1",),
    "split_and_sharded": ("O0", "O1", "O2", "O5"),
    "stages": ("O1", "O4"),
}
CASES = [(way, level) for way, levels in WAYS.items() for level in levels]
#: The pipelines of torch 2.9 abort with gloo, in programs without ampcompat too.
PIPELINES_ABORT = features.is_version_within("2.9", "2.9")
#: Of the largest weight.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 4e-3, "O4": 1.6e-2, "O5": 1.6e-2}


def why_not(way, level="O1"):
    """Return why this torch cannot train in a way, or None."""
    if way in WRAPPED:
        return half_kernels.FEW_KERNELS if level == "O3" and not half_kernels.steps_adam_in(precision.LOW) else None
    if not features.is_version_within(oldest="2.6"):
        return "these are tried from torch 2.6 on"
    if way == "stages" and PIPELINES_ABORT:
        return "pipelines abort with gloo in torch 2.9"
    return sharding.why_not() if "sharded" in way and way != "sharded_state" else None


@pytest.fixture(scope="module")
def outcomes():
    return ranks.run(loops.every_way, [case for case in CASES if why_not(*case) is None])


@pytest.mark.parametrize("way, level", CASES)
def test_ranks_skip_the_same_steps_and_train_as_one_process_does(outcomes, way, level):
    if why_not(way, level) is not None:
        pytest.skip(why_not(way, level))
    expected_skips, expected, expected_seen = loops.one_process("O2" if way == "sharded_in_half" else level)
    for outcome in outcomes:
        skips, weights, *seen = outcome[way, level]
        assert skips == expected_skips
        for name, value in weights.items():
            assert way == "stages" or torch.equal(value, outcomes[0][way, level][1][name])
            assert value.dtype is expected[name].dtype
            assert (value - expected[name]).abs().max() <= TOLERANCE[level] * expected[name].abs().max()
        # Evaluated between steps: gathered weights live in reused memory, and a copy of them must not outlive it.
        for found in seen:
            assert (found - expected_seen).abs().max() <= 2 * TOLERANCE[level] * expected_seen.abs().max()


@pytest.mark.skipif(why_not("compressed") is not None, reason=str(why_not("compressed")))
def test_what_cannot_work_says_what_to_use_instead():
    for fsdp1, zero in ranks.run(loops.refusals):
        assert "fully_shard instead" in fsdp1
        assert "parameters_as_bucket_view=True" in zero and "or use fully_shard" in zero


@pytest.mark.skipif(bool(sharding.why_not()), reason=str(sharding.why_not()))
def test_an_optimizer_that_was_made_before_sharding_is_pointed_out_once():
    first, second = ranks.run(late_shards)
    assert first.count("the model does not train") == 1
    assert second == ""  # only rank 0 prints
