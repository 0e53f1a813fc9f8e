"""What ``estimate`` predicts of sharded models, against what ranks hold and send; the cost next to plain torch."""

import pytest
import torch
from helpers import ranks, sharding

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_memory_loops as loops

import ampcompat
from ampcompat.errors import AmpValueError

KINDS = ("parameters", "gradients", "optimizer")


@pytest.mark.parametrize("number, level", [(1, "O2"), (2, "O1"), (3, "O5"), (4, "O2")])
def test_a_rank_holds_and_sends_what_is_predicted_within_two_percent(number, level):
    with torch.device("meta"):
        model = loops.Blocks()
    predicted = ampcompat.estimate(model, torch.optim.Adam, level, world_size=number, shard="full")
    outcomes = ranks.run(loops.measured, level, world_size=number)
    for kind in KINDS:  # of the rank that holds most: the state of the last one is not padded
        most = max(held[kind] for held, _, _ in outcomes)
        assert abs(most - getattr(predicted, kind)) <= 0.02 * getattr(predicted, kind)
    assert all(abs(sent - predicted.sent) <= 0.02 * predicted.sent for _, sent, _ in outcomes)
    assert predicted.masters == 0 and predicted.world_size == number
    assert (f"on each of {number} ranks" in str(predicted)) == (number > 1)


def test_amp_holds_and_calls_what_plain_torch_does_and_all_reduces_one_flag():
    for (held, sent, calls), plain in zip(ranks.run(loops.measured, "O2"), ranks.run(loops.measured, "O2", False)):
        assert (held, sent) == plain[:2]
        assert calls.pop("allreduce_") == 1 and calls == plain[2]


def test_a_model_of_70_billion_params_is_predicted_without_memory():
    with torch.device("meta"):
        model = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8192, 28672, bias=False), torch.nn.Linear(28672, 30464, bias=False))
            for _ in range(63)
        )
    found = ampcompat.estimate(model, torch.optim.Adam, "O2", world_size=512, shard=list(model))
    assert 69e9 < found.num_params < 71e9
    assert found.formula == pytest.approx(16 * found.num_params / 512, rel=0.01)
    assert found.sent == pytest.approx(8 * found.num_params * 511 / 512, rel=0.01)


def test_without_shards_gradients_are_all_reduced():
    net = torch.nn.Linear(10, 10, bias=False)
    assert ampcompat.estimate(net, torch.optim.Adam, "O2", world_size=4).sent == 2 * 3 * 100 * 2 // 4
    assert ampcompat.estimate(net, torch.optim.Adam, "O1").sent == 0


@pytest.mark.parametrize("wrong", [{"world_size": 0}, {"world_size": 2.0}, {"shard": "half"}], ids=str)
def test_invalid_arguments_say_what_was_expected(wrong):
    with pytest.raises(AmpValueError, match="must be"):
        ampcompat.estimate(torch.nn.Linear(2, 2), torch.optim.Adam, **wrong)
