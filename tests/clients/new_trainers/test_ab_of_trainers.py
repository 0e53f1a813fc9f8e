"""``ab`` on a script of each trainer: its levels are accepted, and O0 has the losses of the script unchanged."""

import importlib.util
import os

import pytest
import torch
from helpers import client_modules, forced_trainings

from ampcompat.launch.forced_levels.forced_level import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")
SCRIPTS = ["accelerate", "lightning", "nanogpt", "timm", "transformers"]


@pytest.mark.parametrize("trainer", SCRIPTS)
def test_ab_accepts_the_levels_of_a_trainer(trainer, tmp_path, monkeypatch):
    if trainer == "nanogpt" and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("before torch 2.3 GradScaler is for CUDA only")
    if trainer != "nanogpt":
        client_modules.check_leg(trainer, "new-trainers")
        if importlib.util.find_spec(trainer) is None and not os.environ.get("AMPCOMPAT_CLIENT"):
            pytest.skip(f"{trainer} is not here; .ci/run new-trainers installs it")
    arguments = [tmp_path] if trainer == "transformers" else []
    forced_trainings.assert_accepted(f"{trainer}_fit.py", tmp_path, monkeypatch, *arguments)
