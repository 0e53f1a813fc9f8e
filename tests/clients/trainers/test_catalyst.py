"""catalyst 21: its ``APEXEngine`` under its SupervisedRunner, and resuming from its callback's checkpoint."""

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat

dl = client_modules.imported_with_apex("catalyst.dl", "trainers")

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")


def run(level, folder, epochs, resume=None):
    """Train; return (weights, dtypes noted, the engine's checkpoint) and close the session."""
    torch.manual_seed(0)
    model = client_training.Net()
    examples = torch.utils.data.TensorDataset(*(torch.cat(part) for part in zip(*client_training.batches())))
    saver = dl.CheckpointCallback(
        str(folder), loader_key="train", metric_key="loss", minimize=True, mode="full", resume=resume
    )
    runner = dl.SupervisedRunner()
    runner.train(
        model=model,
        engine=dl.APEXEngine("cpu", apex_kwargs=dict(opt_level=level)),
        criterion=torch.nn.CrossEntropyLoss(),
        optimizer=client_training.optimizer_of(model),
        loaders={"train": torch.utils.data.DataLoader(examples, batch_size=4)},
        num_epochs=epochs,
        # No logdir, which would log to tensorboardX, and that of catalyst's time needs an older numpy.
        callbacks=[saver],
    )
    scale = runner.engine.pack_checkpoint(model=model)["amp"]
    ended = weights_of(model), model.seen, scale
    ampcompat.reset()
    return ended


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_catalyst_trains_as_the_bare_loop_does(level, tmp_path):
    expected, dtypes = client_training.expected(level)
    weights, seen, _ = run(level, tmp_path, client_training.EPOCHS)
    assert differing(weights, expected) == [] and seen == dtypes


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_catalyst_resumes_from_its_own_checkpoint(level, tmp_path):
    weights, _, scale = run(level, tmp_path / "whole", client_training.EPOCHS)
    run(level, tmp_path / "first", 1)
    last = str(tmp_path / "first" / "last_full.pth")
    # catalyst counts the epochs of each run from the beginning.
    weights_again, seen, scale_again = run(level, tmp_path / "second", client_training.EPOCHS - 1, resume=last)
    assert len(seen) == client_training.BATCHES
    assert differing(weights_again, weights) == [] and scale_again == scale
