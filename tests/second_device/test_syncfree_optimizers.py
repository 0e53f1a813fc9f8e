"""The optimizers of ``torch_xla.amp.syncfree`` train as those of torch, which they are without ``found_inf``.

ampcompat does not give it: SGD with ``maximize`` and weight decay would differ, and one step without it would lose the
momentum. A script may.
"""

import math

import pytest
import torch
from helpers.pairing import paired
from test_levels import IN_FLOAT32, Training
from torch_xla.amp import syncfree

import ampcompat

OPTIONS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "eps": 1e-3},
    "AdamW": {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1},
}


def results(level, kind, options, overflows, **arguments):
    """Return the weights and the loss scale of three steps, some of which overflow; ``arguments`` are those of step."""
    scale = {"loss_scale": "dynamic", "init_scale": 128.0}
    training = Training("xla", level, optimizer=lambda params: kind(params, **options), **scale)
    for step in range(3):
        training.backward(math.inf if step in overflows else 1.0)
        training.step(**arguments)
    found = training.state()
    ampcompat.reset()
    return found


@paired("level, name, overflows, given", ["O0", "O1", "O2", "O4", "O5"], list(OPTIONS), [(), (0,), (1,)], [False, True])
def test_they_train_as_those_of_torch(level, name, overflows, given):
    arguments = {"found_inf": torch.zeros((), device="xla")} if given else {}
    expected = results(level, getattr(torch.optim, name), OPTIONS[name], overflows)
    found = results(level, getattr(syncfree, name), OPTIONS[name], overflows, **arguments)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=IN_FLOAT32)
    assert found[1] == expected[1]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_options_that_their_own_kernel_gets_wrong_are_right(level):
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "maximize": True}
    found, expected = [results(level, each.SGD, options, (1,)) for each in (syncfree, torch.optim)]
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
