"""What ranks hold of a sharded model, and what they send and call, next to plain torch."""

import pytest
from helpers import ranks, sharding

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_memory_loops as loops

#: Bytes per element of the params, by kind: float32 shards at every level (docs/data_parallel.md).
BYTES = {"parameters": 4, "gradients": 4, "optimizer": 8}


@pytest.mark.parametrize("number, level", [(1, "O2"), (2, "O1"), (3, "O5"), (4, "O2")])
def test_a_rank_holds_its_share_of_float32_params_within_two_percent(number, level):
    count = sum(param.numel() for param in loops.Blocks().parameters())
    outcomes = ranks.run(loops.measured, level, world_size=number)
    for kind, size in BYTES.items():  # of the rank that holds most: the state of the last one is not padded
        most = max(held[kind] for held, _, _ in outcomes)
        assert most == pytest.approx(size * count / number, rel=0.02)


def test_amp_holds_and_calls_what_plain_torch_does_and_all_reduces_one_flag():
    for (held, sent, calls), plain in zip(ranks.run(loops.measured, "O2"), ranks.run(loops.measured, "O2", False)):
        assert (held, sent) == plain[:2]
        assert calls.pop("allreduce_") == 1 and calls == plain[2]
