"""Resumed training is uninterrupted training, bit for bit: every level, every order, through a file on disk."""

import itertools

import pytest
import saved_runs
from helpers import precision
from helpers.networks import differing
from helpers.pairing import paired
from saved_runs import OPTIMIZERS, SAVED_AT, STEPS, Run, read, uninterrupted

from ampcompat import amp
from ampcompat.opt_levels import OPT_LEVELS

ALL_LEVELS = tuple(OPT_LEVELS)
#: Where scales are known only after initialize, and a backward pass of amp needs it too.
AFTER_INITIALIZE = ("amp", "backward")
CALLS = ("initialize", "model", "optimizer") + AFTER_INITIALIZE
ORDERS = [
    order
    for order in itertools.permutations(CALLS)
    if all(order.index(call) > order.index("initialize") for call in AFTER_INITIALIZE)
]
SOME_ORDERS = [
    ("model", "optimizer", "initialize", "amp"),
    ("initialize", "model", "optimizer", "amp"),
    ("initialize", "train", "amp", "optimizer", "model"),
    ("initialize", "train", "backward", "model", "amp", "optimizer"),
]


def resume(run, order, checkpoint):
    """Restore ``run`` by these calls in this order."""
    calls = {
        "initialize": run.initialize,
        "model": lambda: run.model.load_state_dict(checkpoint["model"]),
        "optimizer": lambda: run.optimizer.load_state_dict(checkpoint["optimizer"]),
        "amp": lambda: amp.load_state_dict(checkpoint["amp"]),
        "backward": lambda: backward_without_consequences(run),
        "train": lambda: run.train(50, 52),
    }
    for call in order:
        calls[call]()


def backward_without_consequences(run):
    """Do a first backward pass, where Apex made its masters, that leaves weights, statistics and scales unchanged."""
    run.model.eval()
    run.backward(50, delay_overflow_check=True)
    run.model.train()
    run.optimizer.zero_grad()


def check(level, name, order, checkpoint):
    _, expected, losses = uninterrupted(level, name)
    run = Run(level, name, seed=7)
    resume(run, order, checkpoint)
    assert run.train(SAVED_AT, STEPS) == losses[SAVED_AT:]
    assert differing(run.portrait(), expected) == []


#: Every order where there are masters; at the other levels the orders take turns.
OTHER_LEVELS = [each for each in ALL_LEVELS if each != "O2"]
LEVEL_OF_ORDER = [(OTHER_LEVELS[index % len(OTHER_LEVELS)], order) for index, order in enumerate(ORDERS)]


@pytest.mark.parametrize("each, order", [("O2", order) for order in ORDERS] + LEVEL_OF_ORDER, ids=str)
def test_every_order_of_calls_resumes_to_the_bit(each, order):
    check(each, "Adam", order, read(uninterrupted(each, "Adam")[0]))


@paired("each, name, order", ALL_LEVELS, OPTIMIZERS, SOME_ORDERS)
def test_every_optimizer_resumes_to_the_bit_also_over_other_training(each, name, order):
    check(each, name, order, read(uninterrupted(each, name)[0]))


@pytest.mark.skipif(saved_runs.lacks_weights_only() is not None, reason=str(saved_runs.lacks_weights_only()))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_file_on_disk_loads_with_weights_only(level, name, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(uninterrupted(level, name)[0])
    check(level, name, SOME_ORDERS[1], read(path, weights_only=True))


def test_saving_changes_nothing(level):
    run = Run(level, "Adam").initialize()
    for index in range(STEPS):
        run.checkpoint()
        run.train(index, index + 1)
    assert differing(run.portrait(), uninterrupted(level, "Adam")[1]) == []


@pytest.mark.skipif(precision.IS_STAND_IN, reason="float32, used here in place of half, does not overflow at this loss")
@pytest.mark.parametrize("each", ["O1", "O2", "O3"])
def test_the_runs_above_have_a_skipped_step_to_remember(each):
    scale, unskipped = uninterrupted(each, "Adam")[1]["loss_scaler0"].tolist()
    assert scale < saved_runs.FIRST_SCALE and unskipped < STEPS
