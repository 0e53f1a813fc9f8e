"""Models sharded by torch's ``fully_shard`` (FSDP2) over two gloo processes."""

import pytest
import sharded_loops
import torch
from helpers import ranks, sharding

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

#: Of the largest weight. "O1 in half" is compared with O2.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O4": 1.6e-2, "O1 in half": 2e-3}
REFERENCE = dict(
    {way: options for way, (_, options) in sharded_loops.WAYS.items()}, **{"O1 in half": {"opt_level": "O2"}}
)
SCALED = ("O1", "O1 in half")


@pytest.fixture(scope="module")
def trained():
    return ranks.run(sharded_loops.every_way, None)


@pytest.fixture(scope="module")
def overflowed():
    return ranks.run(sharded_loops.every_way, 1)


@pytest.mark.parametrize("way", list(sharded_loops.WAYS))
def test_shards_train_as_one_process_does_on_the_joint_batch(trained, way):
    seen, _, scale, weights = sharded_loops.one_process(**REFERENCE[way])
    for outcome in trained:
        assert outcome[way][2] == scale
        for name, value in weights.items():
            assert (outcome[way][3][name] - value).abs().max() <= TOLERANCE[way] * value.abs().max()
        # Evaluated between steps: gathered weights live in reused memory, and a copy of them must not outlive it.
        assert (outcome[way][0] - seen).abs().max() <= 2 * TOLERANCE[way] * seen.abs().max()


@pytest.mark.parametrize("way", SCALED)
def test_an_overflow_on_one_rank_skips_on_both(overflowed, way):
    first, second = (outcome[way] for outcome in overflowed)
    assert first[1] == second[1] == [False, True, False, False]
    assert first[2] == second[2] == 2.0**15
    assert all(torch.equal(first[3][name], second[3][name]) for name in first[3])


def test_an_optimizer_that_was_made_before_sharding_is_pointed_out_once():
    first, second = ranks.run(sharded_loops.late_shards)
    assert first.count("the model does not train") == 1
    assert second == ""  # only rank 0 prints
