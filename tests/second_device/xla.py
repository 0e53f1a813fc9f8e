"""What the tests of this folder share: the devices, and torch_xla's counters."""

import sys

import pytest
import torch

if "helpers.second_device" not in sys.modules:
    pytest.skip("needs torch_xla, and a process that has begun with it: nox -s second-device", allow_module_level=True)

import torch_xla  # noqa: E402
import torch_xla.debug.metrics as metrics  # noqa: E402
from torch_xla.experimental import eager_mode  # noqa: E402, F401

DEVICES = ("cpu", "xla")


def end_step(device):
    """Let the device compute what it has noted so far, as training loops do after each step."""
    if device == "xla":
        torch_xla.sync()


def parameters(model):
    """Return the params of a model as one vector on the CPU, float32."""
    return torch.cat([param.detach().cpu().float().flatten() for param in model.parameters()])


def reads():
    """Return how many values the host has read from the device so far."""
    return metrics.counter_value("aten::_local_scalar_dense") or 0


def compilations():
    """Return how many graphs were compiled so far."""
    return metrics.counter_value("UncachedCompile") or 0
