"""Trains a small network in a loop with Accelerate: ``accelerate_fit.py [EPOCHS]``.

The loop accumulates gradients over two batches, clips them, and has a scheduler.
"""

import sys

import accelerate
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(240, 6)
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())
model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, scheduler, loader = accelerator.prepare(
    model, optimizer, scheduler, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
)
for _epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
    for batch, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
