"""An error at any line of ``initialize``, a step or ``reset``: the next ``reset`` restores everything."""

import gc
import os
import random

import pytest
import torch
from helpers import interrupted
from helpers.interrupted import SETTINGS, Lines, Training

import ampcompat
from ampcompat.errors import AmpError

#: nox -s interrupts: every line, where it is reached first and last. The suite: so many of them, drawn.
DRAWN = None if "EVERY_INTERRUPT" in os.environ else 3
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python catches errors in finalizers
@pytest.mark.parametrize("phase", ["initialize", "step", "reset"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_after_an_interrupt_another_reset_restores_everything(setting, phase, monkeypatch):
    options, backend = SETTINGS[setting]
    if backend is not None:
        monkeypatch.setenv("AMPCOMPAT_BACKEND", backend)
    try:
        Training(options).initialize()
    except AmpError as error:
        pytest.skip(str(error))
    ampcompat.reset()
    known, lines = known_weights(options), Lines()
    list(interrupted.run(Training(options), phase, lines))
    points = interrupted.first_and_last(lines.places)
    drawn = random.Random(setting + phase)
    for at in points if DRAWN is None else drawn.sample(points, min(DRAWN, len(points))):
        for error in ERRORS if DRAWN is None else [drawn.choice(ERRORS)]:
            training = Training(options)
            interrupted.interrupt(training, phase, error, at)
            ampcompat.reset()
            gc.collect()
            training.assert_is_plain()
            for weight, *values in zip(training.weights(), *known):
                assert any(torch.equal(weight, value) for value in values), lines.places[at]
            training.assert_trains()
