"""Levels forced on a loop with Accelerate: accumulation, clipping, and its own optimizer and scheduler."""

import pytest
import torch
from helpers import client_modules, forced_trainings
from torch import nn

accelerate = client_modules.imported("accelerate", "new-trainers")


def fit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.arange(32) % 3)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, torch.utils.data.DataLoader(data, batch_size=4)
    )
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(prepared):
            loss = nn.functional.cross_entropy(prepared(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, accelerator.unwrap_model(prepared)


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_a_loop_of_accelerate_trains_at_a_forced_level_as_unchanged(level):
    forced_trainings.assert_trains_as_unchanged(fit, level)
