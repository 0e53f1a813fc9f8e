"""A checkpoint of one level goes on at another, with every float32 number as it was saved."""

import itertools

import pytest
import torch
from helpers import loops
from helpers.precision import HIGH
from saved_runs import FIRST_SCALE, SAVED_AT, Run, read, uninterrupted, written

import ampcompat
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


def check_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype is second[name].dtype is HIGH, name
        assert torch.equal(value, second[name]), name


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
    check_same(numbers(run.checkpoint()), expected)
    assert amp.state_dict() == checkpoint["amp"]


@pytest.mark.parametrize(
    "chain", [("O2", "O1", "O0", "O2"), ("O5", "O2", "O4", "O1"), ("O0", "O5", "O0")], ids="-".join
)
def test_a_file_handed_from_level_to_level_keeps_every_bit(chain):
    file, expected = written(saved(chain[0])), numbers(saved(chain[0]))
    for level in chain[1:]:
        run = Run(level, "Adam", seed=7).initialize()
        run.load(read(file))
        file = written(run.checkpoint())
        ampcompat.reset()
    check_same(numbers(read(file)), expected)


def loss_of(model, index, dtype):
    generator = torch.Generator().manual_seed(200 + index)
    return model(torch.randn(5, 6, generator=generator).to(dtype)).to(dtype).pow(2).mean()


def test_training_that_changes_levels_is_the_training_of_float64_to_rounding():
    chain = ("O2", "O1", "O0", "O2", "O5", "O4")
    plain = Run("O0", "SGD")
    plain.model.double()
    for index in range(len(chain)):
        plain.optimizer.zero_grad()
        loss_of(plain.model, index, torch.float64).backward()
        plain.optimizer.step()
    file = None
    for index, level in enumerate(chain):
        run = Run(level, "SGD").initialize(loss_scale=128.0)
        if file is not None:
            run.load(read(file))
        run.optimizer.zero_grad()
        loops.step(loss_of(run.model, index, HIGH), run.optimizer)
        file = written(run.checkpoint())
        ampcompat.reset()
    trained = read(file)["model"]
    for name, value in plain.model.state_dict().items():
        if value.is_floating_point():
            assert (trained[name].double() - value).abs().max() <= 5e-3, name


def test_out_of_o3_comes_what_half_can_hold(level):
    checkpoint = read(uninterrupted("O3", "Adam")[0])
    run = Run(level, "Adam", seed=7).initialize()
    run.load(checkpoint)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, checkpoint["model"][name]), name
    assert run.train(SAVED_AT, SAVED_AT + 2)[0] < FIRST_SCALE
