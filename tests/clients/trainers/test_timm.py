"""timm: its ``ApexScaler`` in a loop like that of its training script, with clipping, and its ``CheckpointSaver``."""

import importlib

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat

scalers = client_modules.imported_with_apex("timm.utils", "trainers")
models = client_modules.imported_with_apex("timm.models", "trainers")

CLIP = 0.5


def parts_of(level, model):
    """Return (model, optimizer, scaler), made as timm's training script makes them."""
    amp = importlib.import_module("apex.amp")
    model, optimizer = amp.initialize(model, client_training.optimizer_of(model), opt_level=level)
    return model, optimizer, scalers.ApexScaler()


def train(model, optimizer, scaler, batches, epochs, saver=None):
    """Run timm's loop over some epochs; return the last loss."""
    for epoch in epochs:
        for x, y in batches:
            optimizer.zero_grad()
            loss = client_training.loss_of(model(x), y)
            scaler(loss, optimizer, clip_grad=CLIP, parameters=model.parameters())
        if saver is not None:
            saver.save_checkpoint(epoch, metric=float(epoch))
    return loss.item()


def run(level, model, batches, folder):
    """Train with a checkpoint after each epoch; return (last loss, weights, scale) and close the session."""
    model, optimizer, scaler = parts_of(level, model)
    saver = scalers.CheckpointSaver(model, optimizer, amp_scaler=scaler, checkpoint_dir=str(folder))
    loss = train(model, optimizer, scaler, batches, range(client_training.EPOCHS), saver)
    ended = loss, weights_of(model), scaler.state_dict()
    ampcompat.reset()
    return ended


def resumed(level, model, batches, folder):
    """Train the second epoch from the checkpoint after the first; return the same."""
    model, optimizer, scaler = parts_of(level, model)
    path = str(folder / "checkpoint-0.pth.tar")
    first = models.resume_checkpoint(model, path, optimizer=optimizer, loss_scaler=scaler)
    loss = train(model, optimizer, scaler, batches, range(first, client_training.EPOCHS))
    return loss, weights_of(model), scaler.state_dict()


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_timm_trains_as_the_bare_loop_does(level, tmp_path):
    expected, dtypes = client_training.expected(level, clip=CLIP)
    model = client_training.Net()
    _, weights, _ = run(level, model, client_training.batches(), tmp_path)
    assert differing(weights, expected) == [] and model.seen == dtypes


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_timm_resumes_from_its_own_checkpoint(level, tmp_path):
    batches = client_training.batches()
    loss, weights, scale = run(level, client_training.Net(), batches, tmp_path)
    loss_again, weights_again, scale_again = resumed(level, client_training.Net(), batches, tmp_path)
    assert (loss_again, scale_again) == (loss, scale) and differing(weights_again, weights) == []


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_timms_own_models_train_and_resume(level, name, tmp_path):
    generator = torch.Generator().manual_seed(2)
    batches = [(torch.randn(2, 3, 160, 160, generator=generator), torch.tensor([0, 2]))] * 2

    def model():
        torch.manual_seed(0)
        return models.create_model(name, num_classes=3)

    with torch.no_grad():
        before = client_training.loss_of(model()(batches[0][0]), batches[0][1]).item()
    loss, weights, scale = run(level, model(), batches, tmp_path)
    loss_again, weights_again, scale_again = resumed(level, model(), batches, tmp_path)
    assert (loss_again, scale_again) == (loss, scale) and differing(weights_again, weights) == []
    assert loss < before
