"""A fixture for tests of tiny tensors, for which several threads would only wait for each other."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Compute in one thread, in the modules that import this name."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
