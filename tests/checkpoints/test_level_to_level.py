"""A checkpoint of one level goes on at another, with every float32 number as it was saved."""

import itertools

import pytest
import torch
from helpers.precision import HIGH
from saved_runs import FIRST_SCALE, SAVED_AT, Run, read, uninterrupted

from ampcompat import amp

#: O3 keeps weights and state in half, as Apex had it: what passes through it is rounded.
KEEPING = ("O0", "O1", "O2", "O4", "O5")
TINY = 1e-11


def saved(level):
    """Return a checkpoint of ``level`` with second moments that half could not hold."""
    checkpoint = read(uninterrupted(level, "Adam")[0])
    for state in checkpoint["optimizer"]["state"].values():
        state["exp_avg_sq"].fill_(TINY)
    return checkpoint


def numbers(checkpoint):
    """Return every floating tensor of a checkpoint's model and optimizer by a name."""
    found = {name: value for name, value in checkpoint["model"].items() if value.is_floating_point()}
    for index, key in enumerate(checkpoint["optimizer"]["param_groups"][0]["params"]):
        for name in ("exp_avg", "exp_avg_sq"):
            found[f"{name} {index}"] = checkpoint["optimizer"]["state"][key][name]
    return found


@pytest.mark.parametrize("loads_first", [True, False], ids=["load, initialize", "initialize, load"])
@pytest.mark.parametrize("source,target", list(itertools.permutations(KEEPING, 2)), ids="-".join)
def test_loading_at_another_level_keeps_every_bit(source, target, loads_first):
    expected = numbers(saved(source))
    checkpoint, run = saved(source), Run(target, "Adam", seed=7)
    if not loads_first:
        run.initialize()
    run.model.load_state_dict(checkpoint["model"])
    run.optimizer.load_state_dict(checkpoint["optimizer"])
    if loads_first:
        run.initialize()
    amp.load_state_dict(checkpoint["amp"])
    found = numbers(run.checkpoint())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype is found[name].dtype is HIGH and torch.equal(value, found[name]), name
    assert amp.state_dict() == checkpoint["amp"]
    assert run.train(SAVED_AT, SAVED_AT + 1) == pytest.approx([uninterrupted(source, "Adam")[2][SAVED_AT]], rel=0.02)


def test_out_of_o3_comes_what_half_can_hold(level):
    checkpoint = read(uninterrupted("O3", "Adam")[0])
    run = Run(level, "Adam", seed=7).initialize()
    run.load(checkpoint)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, checkpoint["model"][name]), name
    assert run.train(SAVED_AT, SAVED_AT + 2)[0] < FIRST_SCALE
