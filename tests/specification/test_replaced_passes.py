"""Clients that put passes of their own in place of what ``scale_loss`` calls on an optimizer, as ONNX Runtime does."""

import types

import pytest
import torch
from helpers import loops
from helpers.networks import begin, make_batch, session_of, settings_at

from ampcompat import amp
from ampcompat.apex.gradient_functions import post_backward_models_are_masters


def unscale_as_onnx_runtime_does(self, scaler):
    """Move half gradients into one buffer; float32 ones by Apex's function."""
    stash = self._amp_stash
    self._amp_lazy_init()
    stash.calls = getattr(stash, "calls", 0) + 1
    for half, master in zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params):
        if half.grad is None:
            continue
        if master.grad is None:
            master.grad = torch.empty_like(master)
            scaler.unscale([half.grad], [master.grad], scaler.loss_scale(), models_are_masters=False)
        else:
            scaler.unscale_with_stashed([half.grad], [master.grad], [master.grad])
    post_backward_models_are_masters(scaler, stash.all_fp32_from_fp32_params, stash.all_fp32_from_fp32_grad_stash)


def train(setting, model, optimizer, overflow_at=None):
    x = make_batch(setting)[0]
    for step in range(4):
        optimizer.zero_grad()
        for part in range(2):
            loss = model(x).pow(2).mean() * (float("inf") if (step, part) == (overflow_at, 1) else 0.5)
            loops.backward(loss, optimizer)
        optimizer.step()
    return [param.detach().clone() for param in amp.master_params(optimizer)], amp.state_dict()


@settings_at("O2", "O5")
@pytest.mark.parametrize("overflow_at", [None, 1])
def test_a_replaced_post_amp_backward_unscales(setting, overflow_at):
    with session_of(setting):
        expected = train(setting, *begin(setting, 0.25, 0.5, loss_scale="dynamic"), overflow_at=overflow_at)
    with session_of(setting):
        model, optimizer = begin(setting, 0.25, 0.5, loss_scale="dynamic")
        optimizer._post_amp_backward = types.MethodType(unscale_as_onnx_runtime_does, optimizer)
        found = train(setting, model, optimizer, overflow_at)
        assert optimizer._amp_stash.calls == 8
    assert all(map(torch.equal, expected[0], found[0]))
    assert found[1] == expected[1]


@settings_at("O0", "O1", "O3")
def test_a_replaced_post_amp_backward_is_called_without_masters_too(setting, session):
    model, optimizer = begin(setting, 0.25, 0.5, loss_scale="dynamic")
    original, scalers = optimizer._post_amp_backward, []

    def post_backward(self, scaler):
        scalers.append(scaler)
        original(scaler)

    optimizer._post_amp_backward = types.MethodType(post_backward, optimizer)
    train(setting, model, optimizer)
    assert scalers == [amp._amp_state.loss_scalers[0]] * 8


@settings_at("O1", "O2", "O5")
def test_an_overflow_that_a_replaced_post_amp_backward_writes_into_the_buffer_skips_the_step(setting, session):
    model, optimizer = begin(setting, 0.25, 0.5, loss_scale="dynamic")
    amp._amp_state.loss_scalers[0]._loss_scale = 64.0
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    optimizer._post_amp_backward = lambda scaler: scaler._overflow_buf.fill_(1)
    loops.step(model(make_batch(setting)[0]).sum(), optimizer)
    assert all(map(torch.equal, before, amp.master_params(optimizer)))
    assert amp._amp_state.loss_scalers[0].loss_scale() == 32.0


@settings_at("O1", "O2", "O5")
def test_with_prepare_amp_backward_replaced_earlier_gradients_count_as_scaled(setting, session):
    model, optimizer = begin(setting, 0.25, 0.5, loss_scale="dynamic")
    x, amp._amp_state.loss_scalers[0]._loss_scale = make_batch(setting)[0], 64.0
    loops.backward(model(x).mean() + model(x).mean(), optimizer)
    expected = [param.grad.clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    optimizer._prepare_amp_backward = types.MethodType(lambda self: None, optimizer)
    (model(x).mean().to(setting.high) * 64.0).backward()  # within the forward of a client that splits its loss
    loops.backward(model(x).mean(), optimizer)
    found = [param.grad for param in amp.master_params(optimizer)]
    assert all(torch.allclose(a, b, rtol=0.02, atol=1e-3) for a, b in zip(expected, found))
