"""Facts agree with what torch does when it is tried."""

import types

import pytest
import torch
from helpers.precision import HIGH

import ampcompat
from ampcompat import amp
from ampcompat.support.torch_compat import cpu, devices, features

FACTS = features.read()


def test_version_is_the_installed_one():
    assert FACTS.version == torch.__version__


def test_the_cpu_is_always_there():
    assert FACTS.devices[0] == "cpu"


@pytest.mark.parametrize("device, given", [("cuda:1", 1), ("xpu:1", 1), ("mps", 0), ("npu:0", 1)])
def test_what_was_given_to_an_accelerator_is_waited_for(device, given, monkeypatch):
    calls, kind = [], device.partition(":")[0]
    monkeypatch.setattr(torch, kind, types.SimpleNamespace(synchronize=lambda *args: calls.append(args)), raising=False)
    device = types.SimpleNamespace(type=kind)  # not every torch knows each of them
    devices.synchronize(device)
    assert calls == [(device,) * given]


def test_a_cpu_is_not_waited_for():
    devices.synchronize(torch.device("cpu"))


@pytest.mark.parametrize("device", FACTS.devices)
def test_autocast_devices_autocast(device):
    if device not in FACTS.autocast_devices:
        pytest.skip(f"torch {torch.__version__} has no autocast for {device}")
    for dtype in FACTS.autocast_devices[device]:
        with torch.autocast(device, dtype=dtype):
            a = torch.ones(2, 2, device=device)
            assert (a @ a).dtype is dtype


def test_reading_facts_changes_no_autocast_flag():
    if not hasattr(torch, "is_autocast_cache_enabled"):
        pytest.skip(f"torch {torch.__version__} has no autocast flags to look at")
    before = (torch.is_autocast_enabled(), torch.is_autocast_cache_enabled())
    features.read()
    assert (torch.is_autocast_enabled(), torch.is_autocast_cache_enabled()) == before


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_what_is_tried_out_is_found_in_inference_mode_too(level):
    """A model that is used only may be initialized there."""
    if not hasattr(torch, "inference_mode"):
        pytest.skip(f"torch {torch.__version__} has no inference mode")
    for module in (features, cpu):
        for tried in vars(module).values():
            getattr(tried, "cache_clear", int)()
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    with ampcompat.session(verbosity=0), torch.inference_mode():
        amp.initialize(network, opt_level=level)
        assert network(torch.ones(2, 4, dtype=HIGH)).shape == (2, 4)
