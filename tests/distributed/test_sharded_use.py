"""Sharded models at levels that cast weights: what is kept, restored, refused, accumulated, skipped by a flag."""

import pytest
import torch
from ddp_loops import batches, make_net
from helpers import ranks, sharding

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_use_loops as loops
from torch.distributed.fsdp import MixedPrecisionPolicy

import ampcompat

HALF, FULL, BFLOAT16 = torch.float16, torch.float32, torch.bfloat16


@pytest.fixture(scope="module")
def outcomes():
    return ranks.run(loops.all_uses)


def test_what_is_refused_says_what_to_do(outcomes):
    for outcome in outcomes:
        said, dtypes = outcome["refusals"]
        assert "Call fully_shard first" in said["late"]
        assert "Leave mp_policy out" in said["another dtype"] and "param_dtype=torch.float16" in said["another dtype"]
        assert "Use opt_level O4" in said["split by hand"]
        assert dtypes == {FULL}


def test_closing_the_session_restores_the_dtype_in_which_weights_are_gathered(outcomes):
    for outcome in outcomes:
        assert outcome["restored"] == [(FULL, HALF), (FULL, FULL), (FULL, BFLOAT16), (FULL, FULL)]


def test_kept_layers_are_gathered_in_float32(outcomes):
    for outcome in outcomes:
        kept = outcome["kept_layers"]
        assert kept["by itself"] == ([(HALF, HALF), (FULL, HALF), (HALF, HALF)], {FULL})
        assert kept["in a list"] == ([(HALF, HALF), (FULL, HALF), (FULL, HALF)], {FULL})
        if hasattr(MixedPrecisionPolicy(), "param_dtype_override_fn"):
            assert kept["with others"] == kept["by itself"]
        else:
            message = kept["with others"]
            assert message.startswith("1.weight stays float32 at O2") and "on its own" in message


def test_parts_that_are_not_sharded_are_cast_and_have_masters_as_ever(outcomes):
    for outcome in outcomes:
        assert outcome["unsharded_parts"] == (FULL, HALF, HALF, {FULL}, {FULL})


def test_a_model_that_is_gathered_as_a_whole_trains(outcomes):
    for outcome in outcomes:
        moved, params = outcome["one_group"]
        assert moved == params


def test_passes_that_are_not_reduced_share_one_loss_scale(outcomes):
    net = make_net()
    sum(net(batch).pow(2).mean() for batch in batches()[:2]).backward()
    for outcome in outcomes:
        scale, gradients = outcome["shared_scaler"]
        assert scale == 2.0**15
        for param, gradient in zip(net.parameters(), gradients):
            assert (gradient - param.grad).abs().max() <= 2e-3 * param.grad.abs().max()


def test_a_step_on_gradients_that_were_not_reduced_is_an_error(outcomes):
    assert all("fully_shard did not reduce" in outcome["unreduced_step"] for outcome in outcomes)


def test_fused_optimizers_skip_the_same_steps_on_every_rank(outcomes):
    for outcome in outcomes:
        skips, moves, scaler = outcome["fused"]
        assert skips == [False, True, False, False] == [not moved for moved in moves]
        assert scaler == {"loss_scale": 2.0**15, "unskipped": 2}


def test_accumulation_reduces_and_checks_once_per_step(outcomes):
    expected = loops.accumulated_by_one_process()
    ampcompat.reset()
    for outcome in outcomes:
        weights, counts = outcome["accumulated"]
        assert [each.get("_reduce_scatter_base_", 0) for each in counts] == [0, 2, 0, 2]  # two groups of params
        assert [each.get("allreduce_", 0) for each in counts] == [0, 1, 0, 1]
        for name, value in expected.items():
            assert (weights[name] - value).abs().max() <= 2e-3 * value.abs().max()
