"""Where memory ends, ``initialize`` changes nothing, and neither a step nor ``reset`` loses a weight."""

import os

import pytest
import torch
from helpers import half_kernels
from helpers.interrupted import SETTINGS, Training

import ampcompat
from ampcompat import amp

dispatch = pytest.importorskip("torch.utils._python_dispatch", reason="this torch has no dispatch modes")
if half_kernels.stand_in() or not hasattr(torch, "compile"):
    pytest.skip("dispatch modes see every operation from torch 2.0 on", allow_module_level=True)

#: nox -s interrupts: every operation. The suite: every ninth, of each setting others.
STEP = 1 if "EVERY_INTERRUPT" in os.environ else 9


class OutOfMemory(RuntimeError):
    """As torch's own, which its releases have under different names."""


class Allocator(dispatch.TorchDispatchMode):
    """Counts operations while ``is_counting``, and raises instead of one of them."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.count = 0
        self.fails_at = fails_at
        self.is_counting = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self.is_counting:
            self.count += 1
            if self.count - 1 == self.fails_at:
                raise OutOfMemory("out of memory")
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=SETTINGS)
def name(request, monkeypatch):
    """Return the name of a setting; its cast backend is chosen."""
    backend = SETTINGS[request.param][1]
    if backend is not None:
        monkeypatch.setenv("AMPCOMPAT_BACKEND", backend)
    return request.param


def count(options, prepare, run):
    training, allocator = Training(options), Allocator()
    prepare(training)
    with allocator:
        allocator.is_counting = True
        run(training)
        allocator.is_counting = False
        ampcompat.reset()
    return allocator.count


def failed(training, run, at):
    """Run with memory that ends once."""
    allocator = Allocator(at)
    with allocator, pytest.raises(OutOfMemory):
        allocator.is_counting = True
        run(training)


def points(name, total):
    return range(list(SETTINGS).index(name) % STEP, total, STEP)


def test_initialize_without_memory_changes_nothing(name):
    total = count(SETTINGS[name][0], Training.plain_step, Training.initialize)
    for at in points(name, total):
        training = Training(SETTINGS[name][0])
        training.plain_step()
        before = training.weights()
        failed(training, Training.initialize, at)
        training.assert_is_plain()
        assert all(map(torch.equal, before, training.weights()))
        training.plain_step()
        assert not any(map(torch.equal, before, training.weights()))


def two_steps(training):
    training.initialize()
    training.step()
    training.step()


def test_a_step_without_memory_loses_no_weight(name):
    before, after = Training(SETTINGS[name][0]), Training(SETTINGS[name][0])
    two_steps(before)
    ampcompat.reset()
    two_steps(after)
    after.step()
    ampcompat.reset()
    for at in points(name, count(SETTINGS[name][0], two_steps, Training.step)):
        training = Training(SETTINGS[name][0])
        two_steps(training)
        failed(training, Training.step, at)
        ampcompat.reset()
        training.assert_is_plain()
        for weight, *known in zip(training.weights(), before.weights(), after.weights()):
            assert any(torch.equal(weight, each) for each in known), at


def test_training_goes_on_after_a_step_without_memory(name):
    for at in points(name, count(SETTINGS[name][0], two_steps, Training.step)):
        training = Training(SETTINGS[name][0])
        two_steps(training)
        failed(training, Training.step, at)
        masters = [master.detach().clone() for master in amp.master_params(training.optimizer)]
        training.step()
        now = list(amp.master_params(training.optimizer))
        assert not any(map(torch.equal, masters, now)), at
        for param, master in zip(training.params, now):
            assert torch.equal(param, master.to(param.dtype)) and bool(torch.isfinite(master).all()), at
        ampcompat.reset()
        training.assert_is_plain()
