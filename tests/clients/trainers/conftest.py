"""Let clients find our ``apex``, and let timm be imported beside a torch for CPUs.

timm imports torchvision, whose builds that are easily had need a torch with CUDA: their Python stops at operators that only
their compiled part declares. Declared here, without code, those operators let it be imported, and nothing of timm or
torchvision is replaced.
"""

import importlib.util

import pytest
import torch

from ampcompat.apex import install

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _torchvision_works():
    try:
        import torchvision
    except Exception:  # a build for another torch fails in ways of its own
        return False
    return bool(torchvision)


#: Declarations last as long as this object.
DECLARED = None
if importlib.util.find_spec("timm") is not None and not _torchvision_works():
    DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        DECLARED.define(operator + SCHEMA)


@pytest.fixture(autouse=True)
def apex_is_ours():
    """Install the alias, as ``python -m ampcompat run`` does."""
    install.install()
    yield
    install.uninstall()


@pytest.fixture
def checkpoints_hold_classes(monkeypatch):
    """Let a client load classes of its own from its checkpoints: since 2.6 torch does not, unless it is told."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
