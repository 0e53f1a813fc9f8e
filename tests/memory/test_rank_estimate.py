"""What ``estimate`` predicts of a step on one of several ranks, against what ``memory_report`` measures there."""

import pytest
import torch
from helpers import ranks, sharding

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_memory_loops as loops

import ampcompat
from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import features


def predicted(level, way, **options):
    options.update(world_size=2, shard=None if way == "ddp" else way, device="cpu")
    return ampcompat.estimate(loops.Blocks(), torch.optim.Adam, level, loss=loops.loss_of, **options)


#: It says "Activations and temporaries are not predicted, since the step calls c10d._allgather_base_", or "broadcast_".
runs_sharded_steps = pytest.mark.skipif(
    features.is_version_within("2.7", "2.10"),
    reason="torch 2.7 to 2.10 send no fake tensors: no step is predicted",
)


@runs_sharded_steps
@pytest.mark.parametrize(
    "way, level", [("full", "O1"), ("full", "O2"), ("zero2", "O5"), ("zero1", "O2"), ("zero1", "O0"), ("ddp", "O2")]
)
def test_the_peak_of_the_fullest_rank_is_predicted_within_five_percent(way, level, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "off")
    found = predicted(level, way)
    outcomes = ranks.run(loops.reported, level, way)
    kinds, peak = max(outcomes, key=lambda outcome: outcome[1])
    buckets = loops.bucket_bytes(level) if way in ("ddp", "zero1") else 0
    assert found.peak_total - buckets == pytest.approx(peak, rel=0.05)
    for kind in ("parameters", "masters", "optimizer"):
        assert getattr(found, kind) == pytest.approx(kinds[kind], rel=0.02), kind
    assert not torch.distributed.is_initialized()


@runs_sharded_steps
def test_gathered_weights_that_are_kept_cost_memory_and_one_gather_less():
    net = torch.nn.Sequential(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]))
    kept, gathered_twice, whole = (
        ampcompat.estimate(
            net,
            lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5),
            "O2",
            world_size=4,
            shard=way,
            loss=lambda model: model(torch.randn(2, 64)).float().sum(),
        )
        for way in ("zero2", "full", None)
    )
    assert kept.temporaries - gathered_twice.temporaries > 4 * 64 * 64 * 2  # of the eight blocks
    assert kept.peak_total > gathered_twice.peak_total
    assert kept.sent < gathered_twice.sent
    assert kept.optimizer == gathered_twice.optimizer < 0.3 * whole.optimizer


@runs_sharded_steps
def test_the_state_alone_is_divided_at_stage_1():
    for loss in (None, loops.loss_of):
        whole, divided = (
            ampcompat.estimate(loops.Blocks(), torch.optim.Adam, "O2", world_size=4, shard=shard, loss=loss)
            for shard in (None, "zero1")
        )
        assert divided.parameters == whole.parameters and divided.masters == whole.masters
        assert 0.25 * whole.optimizer <= divided.optimizer < 0.3 * whole.optimizer
        assert divided.sent > whole.sent


def test_blocks_may_be_listed():
    net = loops.Blocks()
    listed, all_of_them = (
        ampcompat.estimate(net, torch.optim.Adam, "O2", world_size=2, shard=shard, loss=loops.loss_of)
        for shard in (list(net.blocks), "full")
    )
    assert listed == all_of_them


def test_a_process_group_that_is_there_is_refused(tmp_path):
    address = "file://{}".format(tmp_path / "meeting")
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        with pytest.raises(AmpError, match="before init_process_group"):
            predicted("O2", "full")
    finally:
        torch.distributed.destroy_process_group()
