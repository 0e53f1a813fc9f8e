"""Facts agree with what torch does when it is tried."""

import pytest
import torch

from ampcompat.torch_compat import features

FACTS = features.read()


def test_version_is_the_installed_one():
    assert FACTS.version == torch.__version__


def test_the_cpu_is_always_there():
    assert FACTS.devices[0] == "cpu"


@pytest.mark.parametrize("device", FACTS.devices)
def test_autocast_devices_autocast(device):
    if device not in FACTS.autocast_devices:
        pytest.skip("torch {} has no autocast for {}".format(torch.__version__, device))
    for dtype in FACTS.autocast_devices[device]:
        with torch.autocast(device, dtype=dtype):
            a = torch.ones(2, 2, device=device)
            assert (a @ a).dtype is dtype


def test_reading_facts_changes_no_autocast_flag():
    if not hasattr(torch, "is_autocast_cache_enabled"):
        pytest.skip("torch {} has no autocast flags to look at".format(torch.__version__))
    before = (torch.is_autocast_enabled(), torch.is_autocast_cache_enabled())
    features.read()
    assert (torch.is_autocast_enabled(), torch.is_autocast_cache_enabled()) == before
