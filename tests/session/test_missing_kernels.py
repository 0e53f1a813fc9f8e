"""Where torch cannot compute in a half dtype on a CPU, the first ``forward`` says what to do instead."""

import pytest
import torch

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.errors import AmpError
from ampcompat.support import terminal
from ampcompat.support.torch_compat import cpu

MISSING = "\"addmm_impl_cpu_\" not implemented for 'Half'"


@pytest.fixture(autouse=True)
def script(monkeypatch):
    """Give the process a script, which a worker of pytest-xdist has not."""
    monkeypatch.setattr(terminal, "script_command", lambda: "train.py --lr 1")


@pytest.fixture(params=["O1", "O2", "O3", "O4", "O5"])
def level(request, monkeypatch):
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    return request.param


class Raising(torch.nn.Linear):
    def forward(self, x):
        raise RuntimeError(self.message)


@pytest.fixture
def in_no_dtype(monkeypatch):
    monkeypatch.setattr(cpu, "trains_in", lambda dtype: False)
    monkeypatch.setattr(cpu, "differentiates", lambda dtype: True)


def error_of(level, message):
    model = Raising(2, 2)
    model.message = message
    amp.initialize(model, opt_level=level, verbosity=0)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 2))
    return caught.value


@pytest.mark.parametrize("message", [MISSING, "_th_addmm not supported on CPUType for BFloat16"])
def test_a_missing_kernel_is_an_error_that_says_what_works(level, message, in_no_dtype):
    error = error_of(level, message)
    assert isinstance(error, AmpError) and str(error.__cause__) == message
    assert message in str(error) and "opt_level O0" in str(error) and "O4" not in str(error)
    assert "by ampcompat run --dtypes float32,float64 train.py --lr 1, or in the block of" in str(error)


def test_it_names_no_command_in_a_notebook(in_no_dtype, monkeypatch):
    monkeypatch.setattr(terminal, "script_command", lambda: None)
    assert "ampcompat run" not in str(error_of("O2", MISSING))


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_so_is_one_in_a_part_that_is_called_by_itself_or_in_another_model_while_functions_are_cast(level, in_no_dtype):
    before = torch.nn.Module.__call__
    model, other = torch.nn.Sequential(Raising(2, 2)), torch.nn.Sequential(Raising(2, 2))
    model[0].message = other[0].message = MISSING
    with ampcompat.session(level, verbosity=0):
        amp.initialize(model, verbosity=0)
        for called in (model, model[0], other):
            with pytest.raises(AmpError, match="opt_level O0") as caught:
                called(torch.ones(1, 2))
            assert str(caught.value).count("opt_level O0") == 1 and str(caught.value.__cause__) == MISSING
    with pytest.raises(RuntimeError) as caught:
        other(torch.ones(1, 2))
    assert str(caught.value) == MISSING and torch.nn.Module.__call__ is before


def test_levels_with_bfloat16_are_named_where_torch_computes_in_it(monkeypatch):
    monkeypatch.setattr(cpu, "trains_in", lambda dtype: dtype is torch.bfloat16)
    assert "O4" in str(error_of("O2", MISSING))


def test_what_is_named_was_tried_out_without_casts(level, monkeypatch):
    def trains_in(dtype):
        x = torch.ones(1, 1)
        return dtype is torch.bfloat16 and torch.mm(x, x).dtype is torch.float32

    monkeypatch.setattr(cpu, "trains_in", trains_in)
    assert level in ("O4", "O5") or "O4" in str(error_of(level, MISSING))


def test_another_error_of_a_model_stays_as_it_is(level, in_no_dtype):
    assert type(error_of(level, "shapes differ")) is RuntimeError


def test_where_torch_computes_in_half_its_errors_stay_as_they_are(level, monkeypatch):
    monkeypatch.setattr(cpu, "trains_in", lambda dtype: True)
    assert type(error_of(level, MISSING)) is RuntimeError


def test_a_network_is_told_so_before_it_trains(level):
    if cpu.trains_in(opt_levels.OPT_LEVELS[level].dtypes.low):
        pytest.skip("this torch trains in the level's dtype on a CPU")
    # Torch 2.1 has a half kernel for ReLU, convolutions are emulated, and where weights are half, so is pooling.
    layers = torch.nn.Conv2d(1, 1, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Softmax(-1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    with pytest.raises(AmpError, match="--dtypes float32,float64"):
        model(torch.ones(2, 1, 4, 4))


def test_a_dtype_without_gradients_is_refused_in_training_only(monkeypatch):
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    monkeypatch.setattr(cpu, "trains_in", lambda dtype: False)
    monkeypatch.setattr(cpu, "differentiates", lambda dtype: False)
    model = amp.initialize(torch.nn.Identity(), opt_level="O4", verbosity=0)
    with pytest.raises(AmpError, match="no gradients"):
        model(torch.ones(1))
    with torch.no_grad():
        model(torch.ones(1))


def test_what_torch_can_compute_is_found_in_inference_mode_too():
    if not hasattr(torch, "inference_mode"):
        pytest.skip("this torch has no inference mode")
    for asked in (cpu.trains_in, cpu.differentiates):
        asked.cache_clear()
    with torch.inference_mode():
        found = [(cpu.trains_in(dtype), cpu.differentiates(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    assert found == [(True, True), (True, True)]
