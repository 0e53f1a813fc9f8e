"""Every module of torch's own database trains one step at every level as in float32, on both cast backends."""

import pytest
from helpers import half_kernels
from module_results import HALVES, differences, half_references, references, steps_at
from module_runs import configurations
from operator_results import skip_where_unavailable

import ampcompat
from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.support.torch_compat import features


@pytest.fixture(scope="module", autouse=True)
def database_is_imported():
    """Import the database before a test looks at torch; skip the tests where there is none."""
    configurations()


@pytest.fixture(autouse=True)
def levels_are_half(monkeypatch):
    """Let levels mean half, where other tests of old torch have float32 instead."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)


def test_float32_trains_every_module_of_the_database():
    trained = list(zip(configurations(), references()))
    assert {each.name: step.error for each, steps in trained for step in steps if step.error} == {}
    assert len({each.info.name for each, _ in trained}) > 30


@pytest.mark.parametrize("level", ["O1", "O4"])
@pytest.mark.parametrize("backend", ["native", "patched"])
def test_every_module_trains_with_casts_as_in_float32(backend, level):
    skip_where_unavailable(level, backend)
    if not half_kernels.trains_in(HALVES[level]):
        pytest.skip(half_kernels.FEW_KERNELS)
    half = half_references(HALVES[level], True)
    with ampcompat.session(backend=backend, verbosity=0):
        steps = steps_at(level)
    assert differences(level, steps, half) == {}


@pytest.mark.parametrize("level, half_math", [("O2", "on"), ("O3", "on"), ("O5", "on"), ("O5", "off")])
def test_every_module_trains_with_half_weights_as_in_float32(level, half_math, monkeypatch):
    half = half_references(HALVES[level], False)
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, half_math)
    with ampcompat.session(verbosity=0):
        steps = steps_at(level)
    lacks_kernels = half_math == "off" or not features.is_version_within(oldest="2.3")  # of nll_loss, for one
    assert differences(level, steps, half, may_fail_as_torch=lacks_kernels) == {}
