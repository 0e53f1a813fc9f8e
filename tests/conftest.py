"""What every test gets: proof that it left torch untouched; levels and backends as parameters."""

import os

import half_kernels
import precision
import pytest
import snapshots
import torch

import ampcompat
from ampcompat import casting, opt_levels
from ampcompat.errors import AmpValueError
from ampcompat.torch_compat import features
from ampcompat.training import state

ALL_LEVELS = tuple(opt_levels.OPT_LEVELS)


@pytest.fixture(autouse=True)
def torch_is_left_untouched():
    """Fail a test that leaves a patch, a flag, a session, a registration or an override behind."""
    before = snapshots.snapshot()
    environment = dict(os.environ)
    os.environ.update(half_kernels.stand_in())
    torch.manual_seed(0)
    yield
    ampcompat.reset()
    state.registrations.clear()
    state.lists.restore()
    state.allow_incoming_model_not_fp32 = state.hard_override = False
    for name in set(os.environ) - set(environment):
        if name.startswith("AMPCOMPAT"):
            del os.environ[name]
    assert snapshots.differences_settled(before) == []


@pytest.fixture(params=ALL_LEVELS)
def level(request):
    """Every opt level."""
    return request.param


@pytest.fixture(params=("native", "patched"))
def backend(request):
    """Every cast backend that the installed torch can serve."""
    try:
        casting.choose(features.read(), request.param, precision.PAIR)
    except AmpValueError as error:
        pytest.skip(str(error))
    return request.param
