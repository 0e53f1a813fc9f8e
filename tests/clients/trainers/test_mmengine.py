"""mmengine: its ``ApexOptimWrapper`` under its own Runner, and resuming from the Runner's checkpoint."""

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat

client_modules.imported_with_apex("mmengine.optim", "trainers")
runners = client_modules.imported_with_apex("mmengine.runner", "trainers")
bases = client_modules.imported_with_apex("mmengine.model", "trainers")
pytestmark = [
    pytest.mark.usefixtures("checkpoints_hold_classes"),
    pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD:UserWarning"),
]


class MMNet(bases.BaseModel):
    """The network as mmengine wants it."""

    def __init__(self):
        super().__init__()
        self.net = client_training.Net()

    def forward(self, inputs, targets, mode="tensor"):
        """Return the loss by name, or the logits."""
        output = self.net(inputs)
        return {"loss": client_training.loss_of(output, targets)} if mode == "loss" else output


def collated(samples):
    """Return the one batch that mmengine's loader drew, under the names of the model's arguments."""
    x, y = samples[0]
    return {"inputs": x, "targets": y}


def runner_of(level, folder, name, **options):
    """Return a Runner by its configuration, with a checkpoint after every epoch."""
    torch.manual_seed(0)
    return runners.Runner(
        MMNet(),
        str(folder),
        train_dataloader=dict(
            dataset=client_training.batches(),
            batch_size=1,
            num_workers=0,
            sampler=dict(type="DefaultSampler", shuffle=False),
            collate_fn=collated,
        ),
        train_cfg=dict(by_epoch=True, max_epochs=client_training.EPOCHS),
        optim_wrapper=dict(
            type="ApexOptimWrapper",
            opt_level=level,
            loss_scale=None,
            clip_grad=options.pop("clip_grad", None),
            optimizer=dict(type="SGD", lr=0.125, momentum=0.5),
        ),
        default_hooks=dict(checkpoint=dict(type="CheckpointHook", interval=1)),
        default_scope="mmengine",
        experiment_name=name,
        log_level="ERROR",
        **options,
    )


def run(level, folder, name, **options):
    """Train; return (weights, dtypes noted, scale) and close the session."""
    runner = runner_of(level, folder, name, **options)
    runner.train()
    scale = runner.optim_wrapper.state_dict()["apex_amp"]
    ended = weights_of(runner.model.net), runner.model.net.seen, scale
    ampcompat.reset()
    return ended


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_mmengine_trains_as_the_bare_loop_does(level, tmp_path):
    expected, dtypes = client_training.expected(level, loss_inside=True)
    weights, seen, _ = run(level, tmp_path, "bare-" + level)
    assert differing(weights, expected) == [] and seen == dtypes


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_mmengine_resumes_from_its_own_checkpoint(level, tmp_path):
    weights, _, scale = run(level, tmp_path, "whole-" + level)
    first = str(tmp_path / "epoch_1.pth")
    weights_again, seen, scale_again = run(level, tmp_path, "again-" + level, resume=True, load_from=first)
    assert len(seen) == client_training.BATCHES
    assert differing(weights_again, weights) == [] and scale_again == scale
