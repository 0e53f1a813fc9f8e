"""Let mmcv be imported beside a torch for CPUs.

mmcv imports torchvision only for its list of pretrained models, and most builds of torchvision need a torch with CUDA.
If there is none that works, an empty module takes its place.
"""

import importlib.util
import logging
import sys
import types

import pytest


def _has_torchvision():
    try:
        import torchvision
    except Exception:  # a build for another torch fails in ways of its own
        return False
    return bool(torchvision)


if importlib.util.find_spec("mmcv") is not None and not _has_torchvision():
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules["torchvision"] = types.ModuleType("torchvision")


@pytest.fixture(autouse=True)
def runner_does_not_rest(monkeypatch):
    """mmcv's runner sleeps for seconds between epochs and at the end."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def log(caplog):
    """Pytest's ``caplog`` from level INFO up."""
    caplog.set_level(logging.INFO)
    return caplog
