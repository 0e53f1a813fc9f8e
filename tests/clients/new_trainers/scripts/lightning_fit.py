"""Trains a small network by the Trainer of Lightning 2: ``lightning_fit.py [EPOCHS]``."""

import sys

from helpers import torchvision_operators  # noqa: F401 - before torchmetrics imports torchvision

import lightning  # isort: skip
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    """A small classifier."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def training_step(self, batch, index):
        """Return the loss."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        """Return the optimizer and its scheduler."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


lightning.seed_everything(0)
inputs = torch.randn(240, 6)
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 4, gradient_clip_val=0.5, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
