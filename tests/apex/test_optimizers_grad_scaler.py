"""The optimizers under torch's own GradScaler: right weights, unscaled gradients, steps with overflows skipped."""

import pytest
import torch
from helpers.half_kernels import trains_in
from optimizer_cases import PLAIN, fresh_params, made, params_of, set_gradients

from ampcompat.apex import optimizers
from ampcompat.apex.contrib import optimizers as legacy_optimizers
from ampcompat.support.torch_compat import features

SCALE = 1024.0
CASES = PLAIN + [(legacy_optimizers.FusedAdam, None, {}), (legacy_optimizers.FusedSGD, None, {})]
IDS = ["{} {}".format(make.__module__.split(".")[2], make.__name__) for make, _, _ in CASES]
each_class = pytest.mark.parametrize("make, options", [(make, options) for make, _, options in CASES], ids=IDS)
needs_grad_scaler = pytest.mark.skipif(
    not hasattr(getattr(torch, "amp", None), "GradScaler"),
    reason="this torch's GradScaler is for CUDA alone (before 2.3)",
)


def train(optimizer, scaler, index, unscales, overflows):
    """One iteration whose true gradients are those of ``set_gradients``."""
    params = params_of(optimizer)
    set_gradients(params, index)
    expected = [param.grad for param in params]
    optimizer.zero_grad(set_to_none=True)
    loss = sum((param * grad).sum() for param, grad in zip(params, expected))
    scaler.scale(loss).backward()
    if overflows:
        params[1].grad[2] = float("inf")
    if unscales:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return expected


@needs_grad_scaler
@each_class
@pytest.mark.parametrize("unscales", [False, True], ids=["", "unscale_"])
@pytest.mark.parametrize("flagged", [True, False], ids=["on the device", "read"])
def test_weights_are_right_and_gradients_unscaled(make, options, unscales, flagged, monkeypatch):
    if not flagged:
        monkeypatch.setattr(features, "has_flagged_sgd", lambda device_type: False)
    optimizer, plain = (made(make, options, fresh_params(torch.float32)) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
    for index, overflows in enumerate([False, True, False]):
        before = [param.detach().clone() for param in params_of(optimizer)]
        expected = train(optimizer, scaler, index, unscales, overflows)
        for number, (param, true) in enumerate(zip(params_of(optimizer), expected)):
            if not overflows or number != 1:
                assert torch.allclose(param.grad, true, rtol=1e-6)
        if overflows:
            assert all(torch.equal(param.detach(), old) for param, old in zip(params_of(optimizer), before))
            continue
        set_gradients(params_of(plain), index)
        plain.step()
        for one, other in zip(params_of(optimizer), params_of(plain)):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    assert scaler.get_scale() == SCALE / 2


@needs_grad_scaler
@pytest.mark.parametrize("make", [optimizers.FusedAdam, optimizers.FusedMixedPrecisionLamb])
def test_step_takes_a_grad_scaler(make):
    param, right = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer, plain = make([param], lr=0.1), make([right], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaler.scale((param * 0.25).sum()).backward()
    (right * 0.25).sum().backward()
    optimizer.step(grad_scaler=scaler)
    plain.step()
    assert torch.allclose(param, right)
    param.grad.fill_(float("inf"))
    optimizer.step(grad_scaler=scaler)
    assert torch.allclose(param, right)


def test_a_skip_that_the_host_reads_leaves_unscaled_gradients(monkeypatch):
    monkeypatch.setattr(features, "has_flagged_sgd", lambda device_type: False)
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = legacy_optimizers.optimizers.FusedAdam(params)
    params[0].grad, params[1].grad = torch.full((2,), 8.0), torch.full((2,), float("inf"))
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), torch.full((), 8.0)
    optimizer.step()
    assert params[0].grad.tolist() == params[0].tolist() == params[1].tolist() == [1.0, 1.0]


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in half")
def test_half_params_step_on_what_the_half_gradients_hold_before_they_are_divided():
    param = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = legacy_optimizers.optimizers.FusedSGD([param], lr=2.0**30)
    param.grad = torch.full((1,), 2.0**-20, dtype=torch.float16)
    optimizer.found_inf, optimizer.grad_scale = torch.zeros(()), torch.full((), 2.0**10)
    optimizer.step()
    assert param.item() == 0.0 and param.grad.item() == 0.0  # 2**-30 is none of half's numbers
