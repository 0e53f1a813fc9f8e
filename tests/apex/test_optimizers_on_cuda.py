"""Apex's optimizers on a GPU: a step that skips itself never waits for the device; the formula's numbers."""

import pytest
import torch
from helpers import loops
from optimizer_cases import CASES, IDS, Reference, fresh_params, made, set_gradients

from ampcompat import amp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("make, formula, options", CASES, ids=IDS)
def test_flagged_steps_do_not_wait_and_follow_the_formula(make, formula, options):
    params = [torch.nn.Parameter(param.detach().cuda()) for param in fresh_params(torch.float32)]
    optimizer = made(make, options, params)
    if not optimizer._step_supports_amp_scaling:
        pytest.skip("with dampening the host decides")
    reference = Reference(formula, optimizer, options)
    for index, overflowed in enumerate([False, True, False, False]):
        for param, cpu in zip(params, fresh_params(torch.float32)):
            set_gradients([cpu], index)
            param.grad = cpu.grad.cuda() * 8.0
            if overflowed:
                param.grad.fill_(float("nan"))
        optimizer.found_inf = torch.full((), float(overflowed), device="cuda")
        optimizer.grad_scale = torch.full((), 8.0, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if not overflowed:
            for param in params:
                param.grad.div_(8.0)
            reference.step(optimizer)
    for param, right in zip(params, reference.weights):
        assert (param.detach().double() - right).abs().max() <= 2.0**-16 * max(1.0, float(right.abs().max()))


@pytest.mark.parametrize("each", ["O1", "O2"])
@pytest.mark.parametrize("make, formula, options", CASES[:1] + CASES[6:7] + CASES[10:11], ids=["Adam", "SGD", "LAMB"])
def test_no_iteration_under_amp_waits_for_the_device(make, formula, options, each):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    model, optimizer = amp.initialize(model, make(model.parameters(), lr=1e-3), opt_level=each, verbosity=0)
    x = torch.randn(16, 8, device="cuda")

    def step():
        optimizer.zero_grad()
        loops.step(model(x).float().pow(2).mean(), optimizer)

    for _ in range(2):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
