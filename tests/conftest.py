"""What every test gets: proof that it left torch untouched; levels and backends as parameters."""

import collections
import gc
import os
import pathlib

import pytest
import torch
from helpers import forked, half_kernels, precision, snapshots

import ampcompat
from ampcompat import opt_levels
from ampcompat.engine import casting
from ampcompat.engine.session import process_state
from ampcompat.errors import AmpValueError
from ampcompat.support.torch_compat import features

ALL_LEVELS = tuple(opt_levels.OPT_LEVELS)

#: Files that start first, the longest first. With ``-n auto --dist loadfile`` no worker ends alone with one of them.
LONG_FILES = pathlib.Path(__file__).with_name("long_files.txt")

#: Files whose tests (of reports, series of runs, rewritten source code, CI) hardly depend on torch's release.
SAME_FILES = pathlib.Path(__file__).with_name("same_with_every_torch.txt")
_seconds = collections.Counter()  # of each file, where --write-long-files is given


def pytest_addoption(parser):
    """Add the options that measure which files take long, and that leave files out."""
    parser.addoption("--write-long-files", action="store_true", help="write tests/long_files.txt from this run's times")
    parser.addoption(
        "--torch-dependent", action="store_true", help="without the files of tests/same_with_every_torch.txt"
    )


def pytest_runtest_logreport(report):
    """Add the seconds of a test, its setup or its teardown to those of its file."""
    _seconds[report.nodeid.partition("::")[0].partition("/")[2]] += report.duration


def pytest_sessionfinish(session):
    """Write which files took 1 % of all seconds or more."""
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("--write-long-files") and not is_worker:
        long = [file for file, seconds in _seconds.most_common() if seconds >= 0.01 * sum(_seconds.values())]
        LONG_FILES.write_text("\n".join(long) + "\n")


def pytest_configure(config):
    """Remove settings of the user's shell; keep pytest-xdist from starting files in the order of their test counts.

    One thread per process, unless OMP_NUM_THREADS says otherwise: pytest-xdist starts one process per core.
    """
    for name in snapshots.settings():  # with AMPCOMPAT_HALF_MATH=off, conformance fails on torch 1.12
        del os.environ[name]
    _let_examples_take_long()
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if config.getoption("--torch-dependent"):
        omitted = [str(SAME_FILES.parent / file) for file in SAME_FILES.read_text().split()]
        config.option.ignore = (config.option.ignore or []) + omitted


def _let_examples_take_long():
    """Let no test fail because hypothesis made its examples slowly, as on a busy machine."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # as in the environments of clients
        return
    settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("slow")


def pytest_collection_modifyitems(items):
    """Put the long files first."""
    order = {"tests/" + file: index for index, file in enumerate(LONG_FILES.read_text().split())}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


def pytest_keyboard_interrupt():
    """End the processes that tests have started: they would go on, and pytest would wait for them."""
    forked.end_all()


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
    process_state.registrations.clear()
    process_state.lists.restore()
    process_state.allow_incoming_model_not_fp32 = process_state.hard_override = False
    for name in set(snapshots.settings()) - set(environment):
        del os.environ[name]
    assert snapshots.differences_settled(before) == []


@pytest.fixture(scope="session")
def compiled_before():
    """Compile something, if this torch can, before a test looks at torch: the first time changes it."""
    if hasattr(torch, "compile"):
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))


@pytest.fixture
def compiler_forgets(compiled_before):
    """Let the compiler forget what earlier tests have compiled: it compiles no function too often."""
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()
    else:
        yield


@pytest.fixture
def error_line(capsys, monkeypatch):
    """Return a function that returns what a wrong command line prints: one line, with exit code 2; nothing is run."""
    from ampcompat.cli import main

    def line_of(*arguments):
        monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it ran"))
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert left.value.code == 2 and printed.out == "" and len(printed.err.splitlines()) == 1
        return printed.err

    return line_of


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
