"""pytorch-ignite: trainers in Apex's mode, its Checkpoint handler with ``amp`` in it."""

import importlib

import client_training
import pytest
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat

engine = client_modules.imported("ignite.engine", "trainers")
handlers = client_modules.imported("ignite.handlers", "trainers")


def trainer_of(level):
    """Return (trainer, what a checkpoint of it holds), made as in ignite's documentation."""
    amp = importlib.import_module("apex.amp")
    model = client_training.Net()
    model, optimizer = amp.initialize(model, client_training.optimizer_of(model), opt_level=level)
    trainer = engine.create_supervised_trainer(model, optimizer, client_training.loss_of, amp_mode="apex")
    return trainer, {"trainer": trainer, "model": model, "optimizer": optimizer, "amp": amp}


def run(level, folder):
    """Train, with ignite's handler writing a checkpoint after the first epoch; return what it holds at the end."""
    trainer, parts = trainer_of(level)
    saver = handlers.DiskSaver(str(folder), create_dir=True)
    once = engine.Events.EPOCH_COMPLETED(once=1)
    trainer.add_event_handler(once, handlers.Checkpoint(parts, saver, filename_pattern="{name}.{ext}"))
    trainer.run(client_training.batches(), max_epochs=client_training.EPOCHS)
    return parts


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_ignite_trains_as_the_bare_loop_does(level, tmp_path):
    weights, seen = client_training.expected(level)
    model = run(level, tmp_path)["model"]
    assert differing(weights_of(model), weights) == [] and model.seen == seen


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_ignite_resumes_from_its_own_checkpoint(level, tmp_path):
    uninterrupted = run(level, tmp_path)
    weights, scale = weights_of(uninterrupted["model"]), uninterrupted["amp"].state_dict()
    ampcompat.reset()
    trainer, parts = trainer_of(level)
    handlers.Checkpoint.load_objects(parts, str(tmp_path / "checkpoint.pt"))
    trainer.run(client_training.batches(), max_epochs=client_training.EPOCHS)
    assert differing(weights_of(parts["model"]), weights) == []
    assert parts["amp"].state_dict() == scale
