"""Trainers of today, which know nothing of Apex."""

import pytest
from helpers import torchvision_operators  # noqa: F401 - before timm imports torchvision


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Print nothing of the levels."""
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
