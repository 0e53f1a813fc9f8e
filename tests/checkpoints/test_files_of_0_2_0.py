"""Checkpoints that ampcompat 0.2.0 saved are loaded."""

import json
import os
import pickle
import sys

import pytest
import torch
from helpers.precision import IS_STAND_IN

from ampcompat import amp
from ampcompat.apex.install import SITE

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "made_by_0_2_0")

pytestmark = pytest.mark.skipif(IS_STAND_IN, reason="the files hold half weights, and this torch computes in none")


@pytest.fixture
def maker(monkeypatch):
    """The module that wrote the files: it trains as it did then."""
    monkeypatch.setattr(sys, "path", [SITE, FOLDER] + sys.path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "apex"]:
        monkeypatch.delitem(sys.modules, name)
    import make_files

    yield make_files
    for name in [each for each in sys.modules if each.partition(".")[0] in ("apex", "make_files")]:
        del sys.modules[name]


def read(name):
    with open(os.path.join(FOLDER, name + ".pickle"), "rb") as file:
        return pickle.load(file)


@pytest.mark.parametrize("each", ["O1", "O2", "O3", "O5"])
def test_training_continues_from_a_checkpoint(maker, each):
    model, optimizer = maker.make(each, dict(maker.TRAININGS)[each])
    states = read(each + "_states")
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    amp.load_state_dict(states["amp"])
    with open(os.path.join(FOLDER, "losses.json")) as file:
        assert maker.train(model, optimizer) == pytest.approx(json.load(file)[each], rel=1e-2)


def test_the_state_of_an_fp16_optimizer_loads(maker):
    model = torch.nn.Linear(4, 1).half()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = maker.FP16_Optimizer(inner, dynamic_loss_scale=True, verbose=False)
    saved = read("FP16_Optimizer_states")
    optimizer.load_state_dict(saved)
    assert optimizer.loss_scale == saved["loss_scaler"]["loss_scale"]
