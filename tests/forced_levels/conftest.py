"""What every test of forced levels gets."""

import pytest
from helpers import half_kernels


@pytest.fixture(autouse=True)
def real_halves(torch_is_left_untouched, request, monkeypatch):
    """Let levels mean half where the suite has a stand-in for it: what is forced is a level of Apex."""
    half_kernels.without_stand_in(request.node.name, monkeypatch)


@pytest.fixture
def quiet(monkeypatch):
    """Print nothing of the levels."""
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
