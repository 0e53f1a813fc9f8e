"""Trains a small network with the parts of timm's training script: ``timm_fit.py [EPOCHS]``.

The optimizer, the clipping, the moving average of the weights, and the scheduler per update.
"""

import sys

from helpers import torchvision_operators  # noqa: F401 - before timm imports torchvision

import timm  # isort: skip
import timm.models
import timm.optim
import timm.scheduler
import timm.utils
import torch
from torch import nn

BATCHES = 6

torch.manual_seed(0)
images, targets = torch.randn(8 * BATCHES, 3, 32, 32), torch.arange(8 * BATCHES) % 3
images[:, 0] += targets[:, None, None]
epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
model = timm.create_model("test_byobnet", num_classes=3, drop_rate=0.0)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
average = timm.utils.ModelEmaV3(model, decay=0.9)
scheduler, _ = timm.scheduler.create_scheduler_v2(optimizer, sched="cosine", num_epochs=epochs, warmup_epochs=0)
updates = 0
for epoch in range(epochs):
    model.train()
    for batch in torch.randperm(len(images)).split(8):
        loss = nn.functional.cross_entropy(model(images[batch]), targets[batch])
        loss.backward()
        timm.utils.dispatch_clip_grad(timm.models.model_parameters(model), value=1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        average.update(model, step=updates)
    scheduler.step(epoch + 1)
