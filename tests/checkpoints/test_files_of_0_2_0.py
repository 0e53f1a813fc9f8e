"""Checkpoints, models and pairs that ampcompat 0.2.0 pickled are read, though the classes in them have moved since."""

import json
import os
import pickle
import sys

import pytest
import torch
from helpers import half_kernels
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


@pytest.mark.parametrize("each", ["O1", "O2", "O3", "O5"])
def test_a_pickled_model_has_the_weights_of_its_checkpoint(each):
    half_kernels.skip_without_norms(each)
    model, (copy, _) = read(each + "_model"), read(each + "_pair")
    saved = read(each + "_states")["model"]
    assert list(model.state_dict()) == list(copy.state_dict()) == list(saved)
    for loaded in (model, copy):
        for name, tensor in list(loaded.named_parameters()) + list(loaded.named_buffers()):
            found = loaded.state_dict()[name]  # float32; half weights have lost the low bits of their masters
            assert found.dtype is saved[name].dtype and torch.equal(
                found.to(tensor.dtype), saved[name].to(tensor.dtype)
            )
    assert torch.isfinite(model.eval()(torch.ones(2, 4)).float()).all()


def test_a_pickled_pair_without_masters_trains_on(maker):
    model, optimizer = read("O1_pair")
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, loss_scale=128.0)
    losses = maker.train(model, optimizer)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("each", ["O2", "O5"])
def test_a_pickled_half_model_is_given_masters_where_that_is_asked_for(maker, each):
    model = read(each + "_model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"opt_level": each, "verbosity": 0, "loss_scale": 128.0, "allow_half_model": True}
    losses = maker.train(*amp.initialize(model, optimizer, **options))
    assert losses[2] < losses[0]


def test_the_state_of_an_fp16_optimizer_loads(maker):
    model = torch.nn.Linear(4, 1).half()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = maker.FP16_Optimizer(inner, dynamic_loss_scale=True, verbose=False)
    saved = read("FP16_Optimizer_states")
    optimizer.load_state_dict(saved)
    assert optimizer.loss_scale == saved["loss_scaler"]["loss_scale"]


@pytest.mark.parametrize(
    "module, name",
    [
        ("models.forward", "ForwardCasts"),
        ("engine.models.wide_buffers", "WideBuffers"),
        ("apex.fp16_utils.loss_scaler", "DynamicLossScaler"),
        ("apex.mlp.perceptron", "MLP"),
        ("apex.normalization.norm_modules", "FusedLayerNorm"),
        ("apex.optimizers.mixed_lamb", "FusedMixedPrecisionLamb"),
        ("apex.recurrent.stacks", "stackedRNN"),
    ],
)
def test_a_pickle_finds_a_class_under_the_name_of_its_module_of_before(module, name):
    found = pickle.loads(f"campcompat.{module}\n{name}\n.".encode())
    assert issubclass(found, object) and found.__module__ != f"ampcompat.{module}"


def test_a_module_of_before_has_no_other_names():
    with pytest.raises(AttributeError):
        _ = sys.modules["ampcompat.models.state_dict"].no_such_name
