"""Let clients find our ``apex``, and load what they saved."""

import pytest
from helpers import torchvision_operators  # noqa: F401 - before a client imports torchvision

from ampcompat.apex import install


@pytest.fixture(autouse=True)
def apex_is_ours():
    """Install the alias, as ``ampcompat run`` does."""
    install.install()
    yield
    install.uninstall()


@pytest.fixture
def checkpoints_hold_classes(monkeypatch):
    """Let a client load classes of its own from its checkpoints: torch 2.6 and later need an option for this."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
