"""What every test of forecasts gets."""

import pytest


@pytest.fixture(autouse=True)
def real_halves(torch_is_left_untouched, monkeypatch):
    """Let levels mean half where the suite has a stand-in for it: a forecast trains in float32."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
