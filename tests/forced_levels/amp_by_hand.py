"""A loop with ``amp`` written in by hand at the level ``hand``, and under a forced level, where that is None."""

import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.launch.forced_levels.forced_level import forced

SMALL = 2.0**-8  # losses that the first scale, 2**16, does not make overflow


def begin(hand, models, optimizers):
    """Initialize models where ``amp`` is written in; return their optimizers."""
    if hand is not None:
        amp.initialize(models, optimizers, opt_level=hand, verbosity=0)
    return optimizers


def backward(hand, loss, optimizers):
    """Do the backward pass of a loss."""
    loss.backward() if hand is None else loops.backward(loss, optimizers)


def both(level, run):
    """Return what ``run(hand)`` returns with ``amp`` written in by hand, and under a forced level."""
    torch.manual_seed(0)
    expected = run(level)
    ampcompat.reset()
    torch.manual_seed(0)
    with forced(level):
        return expected, run(None)


def assert_equal(result, expected):
    """Compare lists of tensors bit for bit: at O3 some overflow, and LBFGS diverges."""
    assert len(result) == len(expected) > 0
    for one, other in zip(result, expected):
        assert one.dtype is other.dtype and torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
