"""PyTorch Lightning 1.9: its Apex plugin under its Trainer.

The plugin refuses CPUs and, since 1.9, to resume. So CUDA is redirected here, and a run is resumed by the hooks that
Lightning gives the user, from the checkpoint that Lightning wrote, which contains the state of amp.
"""

import importlib

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, weights_of

import ampcompat
from ampcompat.cuda_redirect import redirect_device

pl = client_modules.imported_with_apex("pytorch_lightning", "trainers")
plugins = client_modules.imported_with_apex("pytorch_lightning.plugins", "trainers")


pytestmark = [
    pytest.mark.usefixtures("checkpoints_hold_classes"),
    pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD:UserWarning"),
    pytest.mark.filterwarnings("ignore:The NVIDIA/apex AMP implementation has been deprecated"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Module(pl.LightningModule):
    """The network as Lightning wants it."""

    def __init__(self):
        super().__init__()
        self.net = client_training.Net()

    def forward(self, x):
        """Return the logits."""
        return self.net(x)

    def training_step(self, batch, index):
        """Return the loss."""
        x, y = batch
        return client_training.loss_of(self(x), y)

    def configure_optimizers(self):
        """Return the optimizer."""
        return client_training.optimizer_of(self)


class Resumable(Module):
    """Takes amp's state out of a checkpoint itself."""

    def on_load_checkpoint(self, checkpoint):
        """Take what the plugin refuses to load."""
        self.scale = checkpoint.pop(plugins.ApexMixedPrecisionPlugin.__qualname__)

    def on_train_start(self):
        """Load it, after ``amp.initialize``."""
        if hasattr(self, "scale"):
            importlib.import_module("apex.amp").load_state_dict(self.scale)


def run(level, folder, module, **options):
    """Train; return (weights, dtypes noted, scale) and close the session."""
    with redirect_device("cpu"):
        saver = pl.callbacks.ModelCheckpoint(str(folder), filename="{epoch}", save_top_k=-1)
        trainer = pl.Trainer(
            accelerator="gpu",
            devices=1,
            precision=16,
            amp_backend="apex",
            amp_level=level,
            max_epochs=client_training.EPOCHS,
            callbacks=[saver],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(client_training.batches(), batch_size=None)
        trainer.fit(module, loader, **options)
        scale = trainer.precision_plugin.state_dict()
        ended = weights_of(module.net), module.net.seen, scale
        ampcompat.reset()
    return ended


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_lightning_trains_as_the_bare_loop_does(level, tmp_path):
    expected, dtypes = client_training.expected(level)
    weights, seen, _ = run(level, tmp_path, Module())
    assert differing(weights, expected) == [] and seen == dtypes


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_lightning_resumes_from_its_own_checkpoint(level, tmp_path):
    weights, _, scale = run(level, tmp_path, Module())
    weights_again, seen, scale_again = run(level, tmp_path, Resumable(), ckpt_path=str(tmp_path / "epoch=0.ckpt"))
    assert len(seen) == client_training.BATCHES
    assert differing(weights_again, weights) == [] and scale_again == scale
