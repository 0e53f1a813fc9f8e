"""What every test of forced levels gets."""

import re

import pytest
import torch
from helpers.half_kernels import convolves_in


@pytest.fixture(autouse=True)
def real_halves(torch_is_left_untouched, request, monkeypatch):
    """Let levels mean half where the suite has a stand-in for it: what is forced is a level of Apex."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    if not convolves_in(torch.float16) and {"O1", "O2", "O3"}.intersection(re.split(r"\W", request.node.name)):
        pytest.skip("this torch lacks kernels in float16 on a CPU")
