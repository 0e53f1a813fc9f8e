"""Levels forced on the Trainer of Lightning 2, whose optimizers step with closures, and on its manual optimization.

Audits of its precisions.
"""

import pytest
import torch
from helpers import client_modules, forced_trainings
from torch import nn

import ampcompat

lightning = client_modules.imported("lightning", "new-trainers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]


class Module(lightning.LightningModule):
    """A small classifier."""

    def __init__(self, is_manual, lr=0.125):
        super().__init__()
        self.lr = lr
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.automatic_optimization, self.losses = not is_manual, []

    def training_step(self, batch, index):
        """Return the loss, or step by hand."""
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def configure_optimizers(self):
        """Return the optimizer and its scheduler."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fit(is_manual, **options):
    module = Module(is_manual, options.pop("lr", 0.125))
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 6, generator=generator), torch.arange(16) % 3)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=None if is_manual else 0.5, **options,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module.losses, module


@pytest.mark.parametrize("is_manual", [False, True])
@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_lightning_trains_at_a_forced_level_as_unchanged(level, is_manual):
    forced_trainings.assert_trains_as_unchanged(lambda: fit(is_manual), level)


@pytest.mark.parametrize("precision, wrong", [("bf16-true", ["lost_updates"]), ("bf16-mixed", []), ("32-true", [])])
def test_bfloat16_weights_of_lightning_lose_updates_and_its_autocast_does_not(precision, wrong):
    with ampcompat.audit([]) as audit:
        fit(False, lr=1e-5, precision=precision)
    assert [each["kind"] for each in audit.wrong] == wrong
    assert audit.report()["dtypes"]["autocast"] == (["bfloat16"] if precision == "bf16-mixed" else [])
