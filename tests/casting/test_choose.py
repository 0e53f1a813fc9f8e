"""The choice between the backends, and the sentence that explains it."""

import pytest
import torch

from ampcompat.engine.casting import choose
from ampcompat.errors import AmpValueError
from ampcompat.opt_levels import BFLOAT16, HALF, STAND_IN
from ampcompat.support.torch_compat.features import Facts


def facts(devices=("cpu",), **autocast):
    return Facts("9.9", devices, autocast)


BOTH = (torch.float16, torch.bfloat16)


def test_auto_prefers_native_where_every_device_autocasts():
    choice = choose(facts(("cpu", "cuda"), cpu=BOTH, cuda=BOTH), "auto", HALF)
    assert choice.name == "native"
    assert "float16" in choice.reason and "patched" in choice.rejected


@pytest.mark.parametrize(
    "known, pair, why",
    [
        (facts(), HALF, "no torch.autocast"),
        (facts(cpu=(torch.bfloat16,)), HALF, "torch.float16 on cpu"),
        (facts(("cpu", "mps"), cpu=BOTH), BFLOAT16, "on mps"),
        (facts(cpu=BOTH), STAND_IN, "torch.float64"),
    ],
)
def test_auto_falls_back_to_patched_and_says_why(known, pair, why):
    choice = choose(known, "auto", pair)
    assert choice.name == "patched"
    assert why in choice.rejected["native"]


def test_native_that_cannot_work_is_an_error_that_says_why():
    with pytest.raises(AmpValueError, match="float64"):
        choose(facts(cpu=BOTH), "native", STAND_IN)


@pytest.mark.parametrize("wanted", ["native", "patched"])
def test_wanted_backend_is_chosen(wanted):
    assert choose(facts(cpu=BOTH), wanted, HALF).name == wanted


@pytest.mark.parametrize("wanted", ["autocast", "", None, 3])
def test_unknown_backend_is_an_error_that_lists_the_known(wanted):
    with pytest.raises(AmpValueError, match="auto, native or patched"):
        choose(facts(cpu=BOTH), wanted, HALF)
