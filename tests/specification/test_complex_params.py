"""Complex params beside real ones: gradients in true units, overflows seen, at every level."""

import pytest
import torch
from helpers import loops
from helpers.networks import each_setting, initialize, session_of, settings_at

from ampcompat import amp

START, RATE = 0.5 - 0.25j, 2.0**-3


def has_complex_gradients():
    """Return whether torch computes gradients through views of complex tensors; those of 1.6 are conjugates."""
    if not hasattr(torch, "view_as_real"):
        return False
    w = torch.full((3,), START, dtype=torch.complex64).requires_grad_()
    torch.view_as_real(w).pow(2).sum().backward()
    return w.grad[0].item() == 2 * START


pytestmark = pytest.mark.skipif(not has_complex_gradients(), reason="this torch has no gradients of complex tensors")


class Mixed(torch.nn.Module):
    """``f(x) = sum(x * a) + sum(|w|^2)``: the gradient of ``w`` is ``2 w``."""

    def __init__(self, high):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(2, dtype=high))
        self.w = torch.nn.Parameter(torch.full((3,), START, dtype=torch.complex128).to(complex_of(high)))

    def forward(self, x):
        parts = torch.view_as_real(self.w)
        return (x * self.a).sum().to(parts.dtype) + (parts * parts).sum()


def complex_of(high):
    return torch.complex128 if high is torch.float64 else torch.complex64


def begin(setting, kind=torch.optim.SGD, **options):
    model = Mixed(setting.high)
    optimizer = kind(model.parameters(), lr=RATE)
    initialize(setting, model, optimizer, **dict({"loss_scale": "dynamic", "init_scale": 2.0**10}, **options))
    return model, optimizer


def backward(setting, model, optimizer):
    loops.backward(model(torch.ones(2, dtype=setting.high)), optimizer)


def equals(tensor, value):
    parts = torch.view_as_real(tensor.detach())
    return torch.equal(parts, torch.tensor([[value.real, value.imag]] * 3).to(parts))


@each_setting
@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0])
def test_a_complex_gradient_is_unscaled_summed_and_stepped_on(setting, loss_scale, session):
    model, optimizer = begin(setting, loss_scale=loss_scale)
    assert model.w.dtype is complex_of(setting.high)
    for passes in (1, 2):
        backward(setting, model, optimizer)
        assert equals(model.w.grad, 2 * passes * START)
    optimizer.step()
    assert not amp.step_was_skipped(optimizer)
    assert equals(model.w, START - RATE * 4 * START)
    assert model.a.detach().tolist() == [1 - RATE * 2] * 2


@each_setting
@pytest.mark.parametrize("bad", [complex("inf"), complex("-infj"), complex("nanj")], ids=str)
def test_inf_or_nan_in_either_part_of_a_complex_gradient_is_an_overflow(setting, bad, session):
    model, optimizer = begin(setting)
    handle = model.w.register_hook(lambda grad: grad + torch.tensor(bad, dtype=grad.dtype))
    backward(setting, model, optimizer)
    optimizer.step()
    assert amp.step_was_skipped(optimizer) and equals(model.w, START)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**9
    handle.remove()
    optimizer.zero_grad()
    backward(setting, model, optimizer)
    optimizer.step()
    assert not amp.step_was_skipped(optimizer) and equals(model.w, START - RATE * 2 * START)


@settings_at("O0", "O2")
def test_adam_trains_complex_params(setting):
    with session_of(setting):
        model, optimizer = begin(setting, torch.optim.Adam)
        backward(setting, model, optimizer)
        optimizer.step()
    plain = torch.nn.Parameter(torch.full((3,), START, dtype=complex_of(setting.high)))
    plain.grad = 2 * plain.detach()
    torch.optim.Adam([plain], lr=RATE).step()
    assert torch.equal(model.w.detach(), plain.detach()) and not equals(plain, START)


@settings_at("O0", "O2")
def test_a_gradient_that_torch_keeps_as_a_conjugate_is_unscaled(setting, session):
    model, optimizer = begin(setting)
    with amp.scale_loss(model(torch.ones(2, dtype=setting.high)), optimizer) as scaled_loss:
        scaled_loss.backward()
        model.w.grad = model.w.grad.conj()
    assert equals(model.w.grad + 0, 2 * START.conjugate())


@settings_at("O1", "O2")
def test_a_skipped_step_is_explained_by_a_complex_param(setting, capsys, loud):
    model, optimizer = begin(setting, diagnose=True)
    model.w.register_hook(lambda grad: grad * float("inf"))
    backward(setting, model, optimizer)
    optimizer.step()
    assert "w" in capsys.readouterr().out.split("was skipped")[1]
