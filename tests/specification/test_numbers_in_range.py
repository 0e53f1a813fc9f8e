"""Specification 4.4: numbers outside the range of half that a script writes into half tensors at O1 to O5."""

import math

import pytest
import torch
from helpers.networks import initialize, settings_at
from torch.nn import functional

from ampcompat.opt_levels import STAND_IN

MASK = torch.tensor([True, False, True])
LOWEST = float(torch.finfo(torch.float32).min)
#: ``torch.finfo`` aborts the process for bfloat16 in torch 1.3.
LOWEST_HALF = {torch.float16: -65504.0, torch.bfloat16: -(2 - 2.0**-7) * 2.0**127}
#: Calls that write a number into ``x`` of shape (3,).
WRITES = {
    "masked_fill": lambda x, value: x.masked_fill(MASK, value),
    "torch.masked_fill": lambda x, value: torch.masked_fill(x, MASK, value),
    "masked_fill_": lambda x, value: x.masked_fill_(MASK, value),
    "fill_": lambda x, value: x.fill_(value),
    "full_like": lambda x, value: torch.full_like(x, value),
    "index_fill_": lambda x, value: x.index_fill_(0, torch.tensor([0, 2]), value),
    "pad": lambda x, value: functional.pad(x[:2], (0, 1), value=value),
}


@pytest.fixture
def scores():
    """Half scores, if this torch can write into half tensors on a CPU."""

    def make(setting):
        if setting.pair is STAND_IN:
            pytest.skip("the replacement pair has the range of float32")
        x = torch.ones(3, dtype=setting.low)
        try:
            x.clone().masked_fill_(MASK, 2.0)
        except RuntimeError:
            pytest.skip("this torch cannot write into half tensors on a CPU")
        return x

    return make


@settings_at("O1", "O2", "O3", "O4", "O5")
@pytest.mark.parametrize("number", [-1e9, -1e10, LOWEST])
def test_masked_scores_get_no_weight_in_a_softmax(setting, number, scores, session):
    initialize(setting, torch.nn.Linear(2, 2))
    masked = scores(setting).masked_fill(MASK, number)
    assert masked.dtype is setting.low
    assert torch.softmax(masked, -1).tolist() == [0.0, 1.0, 0.0]


@settings_at("O1", "O2", "O3", "O4", "O5")
@pytest.mark.parametrize("name", WRITES)
def test_numbers_out_of_range_become_the_lowest_finite_one_and_others_stay(setting, name, scores, session):
    initialize(setting, torch.nn.Linear(2, 2))
    found = WRITES[name](scores(setting), LOWEST)
    assert found.dtype is setting.low and found[-1].item() == LOWEST_HALF[setting.low]
    for number in (-math.inf, -3.5, 7):
        assert WRITES[name](scores(setting), number)[-1].item() == number


@settings_at("O1", "O2", "O3", "O4", "O5")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_torchscript_compiles_torchs_own_functions(setting, scores, session):
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, -2.0, 2.0).masked_fill(mask, 0.5)

    def scattered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.scatter(x, 0, index, 0.5)  # a function with two wrappers: of a number and of a source

    initialize(setting, torch.nn.Linear(2, 2))
    assert torch.jit.script(masked)(torch.full((3,), 5.0), MASK).tolist() == [0.5, 2.0, 0.5]
    assert torch.jit.script(scattered)(torch.zeros(3), torch.tensor([1])).tolist() == [0.0, 0.5, 0.0]
