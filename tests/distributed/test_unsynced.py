"""Gradient accumulation under no_sync: gradients and overflow flags are reduced in the next synchronized pass."""

import pytest
import torch
import unsynced_loops
from helpers import ranks
from helpers.networks import holds_nonzero

from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
#: Of the largest weight: ranks and passes round their parts of a gradient, the single process rounds the whole.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 6e-3, "O4": 1.6e-2, "O5": 1.6e-2}
KEYS = [case[0] for case in unsynced_loops.cases(LEVELS)]


@pytest.fixture(scope="module")
def trained():
    return ranks.run(unsynced_loops.both_ranks, LEVELS)


@pytest.mark.parametrize("key", KEYS, ids=" ".join)
def test_ranks_agree_on_weights_scales_and_skips(trained, key):
    first, second = (found[key] for found in trained)
    assert first["scaler"] == second["scaler"]
    assert first["skipped"] == second["skipped"] == [False, "overflow" in key, False]
    for name in first["weights"]:
        assert torch.equal(first["weights"][name], second["weights"][name]), name


@pytest.mark.parametrize("key", [key for key in KEYS if "overflow" in key], ids=" ".join)
def test_an_overflow_on_one_rank_backs_the_scale_off_once(trained, key):
    assert trained[0][key]["scaler"] == {"loss_scale": 2.0**7, "unskipped": 1}


@pytest.mark.parametrize("key", [key for key in KEYS if "overflow" not in key], ids=" ".join)
def test_they_train_as_one_process_does_on_the_large_joint_batch(trained, key):
    alone = unsynced_loops.alone(key[0], loss_scale=2.0**4)["weights"]
    together = trained[0][key]["weights"]
    for name in alone:
        if alone[name].is_floating_point():
            difference = (alone[name] - together[name]).abs().max()
            assert difference <= TOLERANCE[key[0]] * max(alone[name].abs().max(), 0.1), name


def test_a_step_on_gradients_that_were_never_exchanged_is_skipped_by_this_ranks_own_overflow(trained):
    assert [found["never"] for found in trained] == [(False, 2.0**8, 0), (True, 2.0**7, 0)]


def test_params_that_some_ranks_use_get_their_share_and_the_others_none(trained):
    first, second = (found["heads"] for found in trained)
    for mine, theirs in zip(first[:2], second[:2]):
        assert mine.tolist() == theirs.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    # torch's wrapper itself gave zeros, up to some version, to a param that no rank has used.
    assert all(grad is None or not holds_nonzero(grad) for grad in (first[2], second[2]))


@pytest.mark.skipif(features.is_version_within(newest="2.0"), reason="levels are forced with torch 2.1 and newer")
@pytest.mark.parametrize("level", [None, "O0", "O1", "O2"])
def test_a_forced_level_leaves_a_first_pass_under_no_sync_to_its_rank_and_keeps_the_wrappers_hooks(level):
    for rank, (grads, calls, hooks_left) in enumerate(ranks.run(unsynced_loops.first_pass, level)):
        own = torch.eye(3)[rank : rank + 1] / 16
        assert grads[0].tolist() == own.tolist()
        assert grads[1].tolist() == [[1 / 16, 1 / 16, 0.0]]
        assert calls == ["forward", "forward", "reduced"] and hooks_left == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_gradient_read_under_no_sync_shows_the_average_after_the_pass_that_is_reduced(trained, level):
    (own, average), (other, other_average) = (found["read"][level] for found in trained)
    assert torch.equal(average, other_average)
    assert (average - (own + other)).abs().max() <= TOLERANCE[level] * average.abs().max()  # of two equal passes
