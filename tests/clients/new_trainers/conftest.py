"""Trainers of today, which know nothing of Apex."""

import pytest
import torch
from helpers import torchvision_operators  # noqa: F401 - before timm imports torchvision


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are tiny here: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Print nothing of the levels."""
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
