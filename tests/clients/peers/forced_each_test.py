"""A plugin of pytest: ``--forced-level O1`` forces a level on each test, as ``ampcompat run --opt-level O1`` does.

What the files of a suite do when they are imported runs without it: pytorch_optimizer's tests try out there which of
its optimizers take a complex tensor, and a level refuses tensors that belong to no module. ``--every 12`` runs every
twelfth test.
"""

import pytest

from ampcompat.launch.forced_levels.forced_level import forced


def pytest_addoption(parser):
    parser.addoption("--forced-level")
    parser.addoption("--every", type=int, default=1)


def pytest_collection_modifyitems(config, items):
    items[:] = items[:: config.getoption("--every")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with forced(item.config.getoption("--forced-level")):
        return (yield)
