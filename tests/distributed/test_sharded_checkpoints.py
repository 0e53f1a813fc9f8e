"""Checkpoints of sharded models: resumed on as many ranks, on others, in one process, after a rank was killed."""

import os

import pytest
import torch
from helpers import ranks, sharding
from helpers.nested import same

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_checkpoint_loops as loops
import torch.distributed.checkpoint as dcp
from sharded_levels_loops import SCALE
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import ampcompat
from ampcompat import amp
from ampcompat.apex import install

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process reads what ranks wrote

#: (rank, number of changes to files): all that ``save`` does to files, once each.
KILLED_BEFORE = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1)]


@pytest.fixture(autouse=True)
def apex():
    yield install.install()
    ampcompat.reset()
    install.uninstall()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with a checkpoint of step 2, and what is in it."""
    folder = str(tmp_path_factory.mktemp("saved") / "run")
    return folder, ranks.run(loops.resumed, folder, 2)[0][1]


def close(one, other):
    """Return whether the weights of two states are equal within rounding to half."""
    pairs = [(value, other["model"][name]) for name, value in one["model"].items()]
    return all((value - expected).abs().max() <= 1e-2 * expected.abs().max() for value, expected in pairs)


def copied(folder, to):
    """Copy a checkpoint, and return the folder of the copy."""
    (step,) = os.listdir(folder)
    os.makedirs(str(to / step))
    for name in os.listdir(os.path.join(folder, step)):
        os.link(os.path.join(folder, step, name), str(to / step / name))
    return str(to)


def read(folder):
    """Read the newest checkpoint of a folder in this process; return its step, network and optimizer."""
    net, optimizer = loops.made(is_sharded=False)
    state = {"step": 0, "model": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}
    state["amp"] = {"loss_scaler0": {"loss_scale": 0.0, "unskipped": 0}}
    step = max(loops.example().saved_steps(folder))
    dcp.load(state, checkpoint_id=os.path.join(folder, f"step-{step}"), no_dist=True)
    net.load_state_dict(state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    return state, net, optimizer


def test_resumed_on_as_many_ranks_training_ends_at_the_same_bits(saved, tmp_path):
    folder, before = saved
    ends = ranks.run(loops.resumed, copied(folder, tmp_path), 4, False)
    whole = ranks.run(loops.resumed, str(tmp_path / "none"), 4, False)
    for (loaded, end), (_, expected) in zip(ends, whole):
        assert same(loaded, before) and same(end, expected)
        assert before["amp"] == {"loss_scaler0": {"loss_scale": SCALE / 2, "unskipped": 1}}


def test_four_ranks_then_two_then_three_then_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "off")
    folder = str(tmp_path / "run")
    state = None
    for number, last in ((4, 2), (2, 4), (3, 6)):
        outcomes = ranks.run(loops.resumed, folder, last, world_size=number)
        assert state is None or all(same(loaded, state) for loaded, _ in outcomes)
        state = outcomes[0][1]
    loaded, net, optimizer = read(folder)
    assert loaded.pop("step") == 6
    assert same(loaded, {name: value for name, value in state.items() if name != "step"})
    amp.initialize(net, optimizer, opt_level="O2", init_scale=SCALE, verbosity=0)
    amp.load_state_dict(loaded["amp"])
    loops.train(net, optimizer, range(7, 9))
    alone, its_optimizer = loops.made(is_sharded=False)
    ampcompat.reset()
    amp.initialize(alone, its_optimizer, opt_level="O2", init_scale=SCALE, verbosity=0)
    loops.train(alone, its_optimizer, range(1, 9))
    assert close({"model": net.state_dict()}, {"model": alone.state_dict()})


@pytest.mark.parametrize("victim, moment", KILLED_BEFORE)
def test_a_rank_killed_while_saving_leaves_a_checkpoint_to_resume_from(saved, tmp_path, victim, moment):
    folder, before = saved
    folder = copied(folder, tmp_path)
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        ranks.run(loops.killed, folder, 3, victim, moment)
    loaded, _, _ = read(folder)
    assert loaded["step"] == (3 if (victim, moment) == (0, 5) else 2)
    if loaded.pop("step") == 2:
        assert same(loaded, {name: value for name, value in before.items() if name != "step"})
