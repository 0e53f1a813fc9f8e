"""The record of the benchmarks of public scripts has the losses before scaling, with several scalers too."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
    pytest.skip("this torch has no GradScaler for a CPU", allow_module_level=True)

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import torch
from torch.amp import GradScaler
from ampcompat import amp

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

def losses():
    found = model(torch.ones(1, 2)).sum(), model(torch.zeros(3, 2)).sum()
    print(*[loss.item() for loss in found])
    return found

scalers = [GradScaler("cpu", init_scale=each) for each in (8.0, 32.0)]
for scaler, loss in zip(scalers, losses()):
    scaler.scale(loss).backward()
for scaled in [scaler.scale(loss) for scaler, loss in zip(scalers, losses())]:
    scaled.backward()
amp.initialize(model, optimizer, num_losses=2, loss_scale=64.0, verbosity=0)
for number, loss in enumerate(losses()):
    with amp.scale_loss(loss, optimizer, loss_id=number) as scaled:
        scaled.backward()
first, second = losses()
with amp.scale_loss(first, optimizer) as scaled, amp.scale_loss(second, optimizer) as other:
    scaled.backward()
    other.backward()
"""


def test_losses_are_recorded_before_they_are_scaled(tmp_path):
    record, script = tmp_path / "record.json", tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT / "benchmarks" / "script_data"), str(ROOT)])
    environment = dict(os.environ, PYTHONPATH=paths, SCRIPT_RECORD=str(record))
    printed = subprocess.run(
        [sys.executable, str(script)], env=environment, check=True, stdout=subprocess.PIPE, universal_newlines=True
    ).stdout
    assert json.loads(record.read_text())["losses"] == [float(each) for each in printed.split()]
