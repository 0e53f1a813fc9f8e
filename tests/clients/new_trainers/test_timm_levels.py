"""Levels forced on a loop of the parts of timm's training script: optimizer, scaler, clipping, average, scheduler."""

import contextlib

import pytest
import torch
from helpers import client_modules, forced_trainings
from torch import nn

timm = client_modules.imported("timm", "new-trainers")
models = client_modules.imported("timm.models", "new-trainers")
utils = client_modules.imported("timm.utils", "new-trainers")
optim = client_modules.imported("timm.optim", "new-trainers")
schedulers = client_modules.imported("timm.scheduler", "new-trainers")


def fit(with_amp):
    torch.manual_seed(0)
    model = timm.create_model("test_byobnet", num_classes=3, drop_rate=0.0)
    optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    average = utils.ModelEmaV3(model, decay=0.5)
    scheduler, _ = schedulers.create_scheduler_v2(optimizer, sched="cosine", num_epochs=4)
    scaler = utils.NativeScaler(device="cpu") if with_amp else None
    losses = []
    for epoch in range(4):
        inputs = torch.randn(4, 3, 64, 64)
        with torch.autocast("cpu", dtype=torch.bfloat16) if with_amp else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(inputs), torch.tensor([0, 1, 2, 0]))
        if scaler is not None:
            scaler(loss, optimizer, clip_grad=1.0, parameters=models.model_parameters(model, exclude_head=False))
        else:
            loss.backward()
            utils.dispatch_clip_grad(models.model_parameters(model, exclude_head=False), value=1.0, mode="norm")
            optimizer.step()
        optimizer.zero_grad()
        average.update(model, step=epoch)
        scheduler.step(epoch + 1)
        losses.append(loss.item())
    assert all(each.dtype is torch.float32 for each in average.module.parameters())
    return losses, model


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_timms_loop_trains_at_a_forced_level_as_unchanged(level):
    forced_trainings.assert_trains_as_unchanged(lambda: fit(with_amp=False), level)


@pytest.mark.parametrize("level", forced_trainings.LEVELS[1:])
def test_timms_loop_with_its_own_mixed_precision_trains_at_a_forced_level(level):
    forced_trainings.assert_trains_as_unchanged(lambda: fit(with_amp=True), level)
