"""What every test gets: proof that it left torch untouched; levels and backends as parameters."""

import gc
import os

import pytest
import torch
from helpers import half_kernels, precision, snapshots

import ampcompat
from ampcompat import casting, opt_levels
from ampcompat.errors import AmpValueError
from ampcompat.torch_compat import features
from ampcompat.training import state

ALL_LEVELS = tuple(opt_levels.OPT_LEVELS)

#: They start first. With ``-n auto --dist loadfile`` no worker is left alone with one of them at the end.
LONG_FILES = (
    "cli/test_ab_command.py",
    "cli/test_run_device.py",
    "distributed/test_sharded_levels.py",
    "cli/test_ab_series.py",
    "distributed/test_sharded_checkpoints.py",
    "cli/test_run_command.py",
    "abtest/test_executors.py",
    "casting/test_compiled_casts.py",
    "selftest/test_selftest_command.py",
    "apex/test_as_apex.py",
    "distributed/test_process_group_threads.py",
    "casting/test_fake_cuda.py",
    "migrate/test_against.py",
    "cuda_redirect/test_redirected_calls.py",
    "examples/test_imagenet.py",
    "cli/test_report_command.py",
)


def pytest_configure(config):
    """Remove settings of the user's shell; keep pytest-xdist from starting files in the order of their test counts.

    One thread per process, unless OMP_NUM_THREADS says otherwise: pytest-xdist starts one process per core.
    """
    for name in snapshots.settings():  # with AMPCOMPAT_HALF_MATH=off, conformance fails on torch 1.12
        del os.environ[name]
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Put the long files first."""
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(LONG_FILES))


@pytest.fixture(scope="module", autouse=True)
def garbage_collections_are_fast():
    """Exempt what importing and the files before made: a collection would take 0.2 s, and some tests need many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def torch_is_left_untouched():
    """Fail a test that leaves a patch, a flag, a session, a registration or an override behind."""
    before = snapshots.snapshot()
    environment = dict(os.environ)
    os.environ.update(half_kernels.stand_in())
    # Where there is no CUDA, `torch.manual_seed` formats the call stack, for when there is: 1 ms each time.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
    yield
    ampcompat.reset()
    state.registrations.clear()
    state.lists.restore()
    state.allow_incoming_model_not_fp32 = state.hard_override = False
    for name in set(snapshots.settings()) - set(environment):
        del os.environ[name]
    assert snapshots.differences_settled(before) == []


@pytest.fixture(scope="session")
def compiled_before():
    """Compile something, if this torch can, before a test looks at torch: the first time changes it."""
    if hasattr(torch, "compile"):
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))


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
