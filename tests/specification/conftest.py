"""What the tests of the specification need before the first of them looks at torch."""

import contextlib

import pytest
from helpers import networks

# Torch's optimizers import it when they are first used, and the import replaces torch.manual_seed: not our doing.
with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401


@pytest.fixture
def levels_own_dtypes(torch_is_left_untouched, monkeypatch):
    """Float16 and bfloat16 although this torch may not compute in them: no replacement pair is used."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)


@pytest.fixture
def session(setting):
    """A session of the test's setting."""
    with networks.session_of(setting) as opened:
        yield opened


@pytest.fixture
def loud(setting):
    """A session of the test's setting that prints its notices."""
    with networks.session_of(setting, verbosity=1) as opened:
        yield opened
