"""An error at any line of ``initialize``, a step or ``reset``: the next ``reset`` restores everything.

``initialize`` itself leaves everything as it was.
"""

import gc
import os
import pathlib
import random
import re
import sys

import pytest
import torch
from helpers import interrupted
from helpers.interrupted import SETTINGS, Lines, Training

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import thread_blocks
from ampcompat.support.torch_compat.thread_blocks import ThreadBlock

#: nox -s interrupts: every line, where it is reached first and last. The suite: so many of them, drawn.
DRAWN = None if "EVERY_INTERRUPT" in os.environ else 3
FIRST_LINE_OF_EXIT = ("support/torch_compat/thread_blocks.py", ThreadBlock.__exit__.__code__.co_firstlineno + 1)
ERRORS = (KeyboardInterrupt, MemoryError, RuntimeError)


def known_weights(options):
    """Return the weights before, between and after the steps of a session."""
    found = [Training(options).weights()]
    for end in ("step", "reset"):
        training = Training(options)
        for name in interrupted.run(training):
            if name == end:
                break
        ampcompat.reset()
        found.append(training.weights())
    return found


@pytest.fixture(params=SETTINGS)
def setting(request, monkeypatch):
    """Return the name of a setting that this torch has; its cast backend is chosen."""
    options, backend = SETTINGS[request.param]
    if backend is not None:
        monkeypatch.setenv("AMPCOMPAT_BACKEND", backend)
    try:
        Training(options).initialize()
    except AmpError as error:
        pytest.skip(str(error))
    ampcompat.reset()
    if DRAWN is None:
        gc.freeze()  # garbage is collected at every place
    return request.param


def points_of(options, phase):
    """Return (line, n) for the first and last time that a phase reaches each line."""
    lines = Lines()
    list(interrupted.run(Training(options), phase, lines))
    return interrupted.first_and_last(lines.places)


def drawn_from(points, draw):
    """Return (point, error) pairs: all, or drawn ones."""
    if DRAWN is None:
        return [(at, error) for at in points for error in ERRORS]
    return [(at, draw.choice(ERRORS)) for at in draw.sample(points, min(DRAWN, len(points)))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python catches errors in finalizers
@pytest.mark.parametrize("phase", ["initialize", "step", "reset"])
def test_after_an_interrupt_another_reset_restores_everything(setting, phase):
    options, _ = SETTINGS[setting]
    known = known_weights(options)
    for at, error in drawn_from(points_of(options, phase), random.Random(setting + phase)):
        training = Training(options)
        interrupted.interrupt(training, phase, error, at)
        ampcompat.reset()
        gc.collect()
        training.assert_is_plain()
        for weight, *values in zip(training.weights(), *known):
            assert any(torch.equal(weight, value) for value in values), at
        training.assert_trains()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_initialize_that_raises_has_changed_nothing(setting):
    options, _ = SETTINGS[setting]
    points = points_of(options, "initialize")
    for at, error in drawn_from(points[-30:] if DRAWN else points, random.Random(setting)):
        training = Training(options)
        before = training.weights()
        if interrupted.interrupt(training, "initialize", error, at):
            gc.collect()
            training.assert_is_plain()
            assert all(map(torch.equal, before, training.weights())), at
        ampcompat.reset()


def out_of_memory(*args):
    raise MemoryError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_training_goes_on_without_a_reset(setting):
    options, _ = SETTINGS[setting]
    end = (("support/patching.py", PatchStack.__exit__.__code__.co_firstlineno + 1), 1)  # as the first block ends
    for at, error in [(end, KeyboardInterrupt), *drawn_from(points_of(options, "step"), random.Random(setting))]:
        training = Training(options)
        if interrupted.interrupt(training, "step", error, at):
            before = [master.detach().clone() for master in amp.master_params(training.optimizer)]
            training.step()
            masters = list(amp.master_params(training.optimizer))
            assert not any(map(torch.equal, before, masters)), at
            for param, master in zip(training.params, masters):
                assert torch.equal(param, master.to(param.dtype)), at
        ampcompat.reset()
        training.assert_is_plain()


def test_an_interrupt_as_the_first_block_of_a_diagnosis_ends_leaves_gradients_enabled_without_a_reset():
    options, _ = SETTINGS["O2 with diagnose"]
    for at in [at for at in points_of(options, "step") if at[0] == FIRST_LINE_OF_EXIT and at[1] == 1]:
        training = Training(options)
        interrupted.interrupt(training, "step", KeyboardInterrupt, at)
        assert torch.is_grad_enabled()
        ampcompat.reset()


@pytest.mark.parametrize("first_setting", ["O2", "O2 with diagnose"])
def test_an_initialize_that_fails_at_its_end_leaves_no_hooks_of_the_diagnosis(first_setting, monkeypatch):
    first, second = Training(SETTINGS[first_setting][0]), Training(SETTINGS["O2 with diagnose"][0])
    plain = second.attributes()
    first.initialize()
    before, observers = first.attributes(), list(ampcompat.current().observers)
    monkeypatch.setattr("ampcompat.amp.set_skip_limit", out_of_memory)
    with pytest.raises(MemoryError):
        second.initialize()
    monkeypatch.undo()
    assert second.attributes() == plain and first.attributes() == before
    assert ampcompat.current().observers == observers
    second.initialize()
    assert second.attributes() != plain
    ampcompat.reset()
    first.assert_is_plain()
    second.assert_is_plain()


@pytest.mark.parametrize("phase", ["step", "reset"])
def test_an_interrupt_as_another_packages_block_ends_leaves_no_mode_and_no_hooks(setting, phase):
    options, _ = SETTINGS[setting]
    for at in [at for at in points_of(options, phase) if os.path.isabs(at[0][0])]:
        training = Training(options)
        interrupted.interrupt(training, phase, KeyboardInterrupt, at)
        ampcompat.reset()
        training.assert_is_plain()


class Interrupted(torch.optim.SGD):
    """Leaves gradients disabled, as an optimizer of torch may."""

    def step(self, closure=None):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt


@pytest.mark.parametrize("setting", ["O5 with remainders"], indirect=True)
def test_steps_tried_by_initialize_leave_gradients_enabled_when_interrupted(setting):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(KeyboardInterrupt):
        amp.initialize(model, Interrupted(model.parameters(), lr=0.1), **SETTINGS[setting][0])
    assert torch.is_grad_enabled()


def test_a_step_of_an_optimizer_that_leaves_gradients_disabled_when_interrupted_leaves_them_enabled():
    model = torch.nn.Linear(1, 1)
    model, optimizer = amp.initialize(model, Interrupted(model.parameters(), lr=0.1), opt_level="O0", verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert torch.is_grad_enabled()


def test_grad_mode_is_restored_by_blocks_around_an_interrupted_one_and_by_end_thread_blocks():
    with thread_blocks.grad_enabled(False):
        thread_blocks.grad_enabled(True).__enter__()
        assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    thread_blocks.grad_enabled(False).__enter__()
    block = thread_blocks.grad_enabled(True)
    block.__enter__()
    with torch.no_grad():
        thread_blocks.end_thread_blocks()
        assert torch.is_grad_enabled()
    block.__exit__()
    assert torch.is_grad_enabled()


def test_a_block_that_an_interrupt_keeps_open_in_a_backward_pass_leaves_gradients_enabled():
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda gradient: thread_blocks.grad_enabled(False).__enter__())
    weight.sum().backward()
    thread_blocks.end_thread_blocks()
    assert torch.is_grad_enabled()


def test_the_engine_has_no_block_that_end_thread_blocks_does_not_know():
    files = pathlib.Path(interrupted.PACKAGE, "engine").rglob("*.py")
    names = re.compile(r"torch\.(no_grad|enable_grad|set_grad_enabled)\b")
    assert [str(file) for file in files if names.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupt_right_after_gradients_were_disabled_leaves_them_enabled(nth, monkeypatch):
    calls = []

    class Interrupted(torch.set_grad_enabled):
        def __init__(self, mode):
            super().__init__(mode)
            if not mode and sys._getframe(1).f_code.co_filename.startswith(interrupted.PACKAGE):
                calls.append(mode)
                if len(calls) == nth:
                    raise KeyboardInterrupt

    training = Training(SETTINGS["O2"][0])
    training.initialize()
    monkeypatch.setattr(torch, "set_grad_enabled", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    monkeypatch.undo()
    assert torch.is_grad_enabled()
    ampcompat.reset()
    training.assert_is_plain()
