"""The script's own autocast regions under a forced level."""

import pytest
import torch
from torch import nn

from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1"),
    pytest.mark.usefixtures("quiet"),
]


class Model(nn.Module):
    """Notes the dtypes of two products: within a region that the script disables, and without one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs):
        hidden = self.first(inputs)
        with torch.autocast("cpu", enabled=False):
            output = self.second(hidden.float())
        self.dtypes = hidden.dtype, output.dtype
        return output


def made():
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


HALVES = {"O0": torch.float32, "O4": torch.bfloat16, "O5": torch.bfloat16}


def in_a_region(call):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call()


def decorated(call):
    return torch.autocast("cpu", dtype=torch.bfloat16)(call)()


def started_without_mixed_precision(call):
    with torch.autocast("cpu", enabled=False):
        return call()


@pytest.mark.parametrize("called", [in_a_region, decorated, started_without_mixed_precision])
def test_a_region_casts_by_the_level_and_a_disabled_one_within_is_float32(level, called):
    with forced(level):
        model, optimizer = made()
        called(lambda: model(torch.ones(1, 2))).sum().backward()
        optimizer.step()
    assert model.dtypes == (HALVES.get(level, torch.float16), torch.float32)


def test_a_disabled_region_of_a_loss_is_float32(level):
    weight = torch.ones(2, 2)
    with forced(level):
        model, optimizer = made()
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(torch.ones(1, 2))
                with torch.autocast("cpu", enabled=False):
                    assert (output.float() @ weight).dtype is torch.float32
            with torch.autocast("cpu", enabled=False):
                assert (output.float() @ weight).dtype is torch.float32
        assert optimizer is not None


def test_regions_of_a_script_without_optimizers_are_torchs_own(level):
    with forced(level), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
