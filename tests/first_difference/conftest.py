"""What every test of first differences gets."""

import pytest
from helpers import half_kernels


@pytest.fixture(autouse=True)
def real_halves(torch_is_left_untouched, request, monkeypatch):
    """Let levels mean half where the suite has a stand-in for it: the faults are those of half."""
    half_kernels.without_stand_in(request.node.name, monkeypatch)
