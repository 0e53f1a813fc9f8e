"""The optimizers of apex.optimizers through ``amp.initialize`` at every level."""

import copy

import pytest
import torch
from helpers import loops, precision
from optimizer_cases import PLAIN, Reference, made

from ampcompat import amp
from ampcompat.apex import optimizers

IDS = [case[0].__name__ for case in PLAIN]
#: Rates at which each of them learns the little task below.
RATES = {"FusedAdam": 0.05, "FusedSGD": 0.1, "FusedLAMB": 0.1, "FusedMixedPrecisionLamb": 0.1, "FusedNovoGrad": 0.1}

needs_grad_scaler = pytest.mark.skipif(
    not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for the CPU"
)


def prepared(make, level, seed=0, **keywords):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = make(model.parameters(), lr=RATES.get(make.__name__, 0.2))
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **keywords)


def train(model, optimizer, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(32, 4, generator=generator).to(next(model.parameters()).device)
        optimizer.zero_grad()
        outputs = model(inputs).float()
        loss = ((outputs.squeeze(1) - inputs[:, 0] * 0.5) ** 2).mean()
        loops.step(loss, optimizer)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_it_trains(level, make, formula, options):
    model, optimizer = prepared(make, level, loss_scale=128.0)
    losses = train(model, optimizer, 30)
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert not amp.step_was_skipped(optimizer)


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_masters_are_updated_in_the_high_dtype_and_rounded_into_the_model(make, formula, options):
    model, optimizer = prepared(make, "O2", loss_scale=128.0)
    train(model, optimizer, 3)
    masters = list(amp.master_params(optimizer))
    assert {master.dtype for master in masters} == {precision.HIGH}
    assert all(torch.equal(param, master.to(param.dtype)) for param, master in zip(model.parameters(), masters))


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_a_resumed_run_equals_one_that_went_on(level, make, formula, options):
    model, optimizer = prepared(make, level, loss_scale=128.0)
    train(model, optimizer, 3)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    train(model, optimizer, 3, first=3)
    right = [param.detach().clone() for param in amp.master_params(optimizer)]
    model, optimizer = prepared(make, level, seed=1, loss_scale=128.0)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    train(model, optimizer, 3, first=3)
    assert all(torch.equal(param.detach(), each) for param, each in zip(amp.master_params(optimizer), right))


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_an_overflow_skips_the_step(level, make, formula, options):
    if level in ("O0", "O3", "O4", "O5"):
        pytest.skip("a static loss scale never skips")
    model, optimizer = prepared(make, level)
    train(model, optimizer, 1)
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    loops.step(model(torch.ones(2, 4)).float().sum() * float("inf"), optimizer)
    assert amp.step_was_skipped(optimizer)
    assert all(torch.equal(old, new.detach()) for old, new in zip(before, amp.master_params(optimizer)))


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_it_copies_with_its_model(make, formula, options):
    model, optimizer = prepared(make, "O2", loss_scale=128.0)
    train(model, optimizer, 2)
    clones = copy.deepcopy((model, optimizer))
    train(model, optimizer, 2, first=2)
    train(*clones, 2, first=2)
    assert all(
        torch.equal(one, other) for one, other in zip(amp.master_params(optimizer), amp.master_params(clones[1]))
    )


def test_a_scheduler_changes_its_rate():
    model, optimizer = prepared(optimizers.FusedSGD, "O1", loss_scale=128.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


@needs_grad_scaler
@pytest.mark.parametrize("make", [optimizers.FusedAdam, optimizers.FusedLAMB, optimizers.FusedMixedPrecisionLamb])
def test_torchs_grad_scaler_drives_it_too(make):
    runs = []
    for enabled in (False, True):
        param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        optimizer = make([param], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=1024.0)
        for factor in (1.0, float("inf") if enabled else None, 2.0):
            if factor is not None:
                optimizer.zero_grad()
                scaler.scale((param * factor).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
        runs.append(param.detach())
    assert torch.allclose(*runs, rtol=1e-6)


@needs_grad_scaler
@pytest.mark.parametrize("make", [optimizers.FusedAdam, optimizers.FusedMixedPrecisionLamb])
def test_step_takes_a_grad_scaler(make):
    param, right = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer, plain = make([param], lr=0.1), make([right], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale((param * 0.25).sum()).backward()
    (right * 0.25).sum().backward()
    optimizer.step(grad_scaler=scaler)
    plain.step()
    assert torch.allclose(param, right)
    param.grad.fill_(float("inf"))
    optimizer.step(grad_scaler=scaler)
    assert torch.allclose(param, right)


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=IDS)
def test_groups_and_decay_follow_the_formula_at_every_level(level, make, formula, options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model, optimizer = amp.initialize(
        model,
        made(make, options, list(model.parameters())),
        opt_level=level,
        verbosity=0,
        loss_scale=8.0,
    )
    reference = Reference(formula, optimizer, options)
    low = {param.dtype for param in amp.master_params(optimizer)} & {precision.low_of(level)} - {torch.float32}
    for step in range(3):
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).device)
        optimizer.zero_grad()
        loops.backward((model(inputs).float().squeeze(1) - inputs[:, 0]).pow(2).mean(), optimizer)
        reference.step(optimizer, *low)
        optimizer.step()
        for param, right in zip(amp.master_params(optimizer), reference.weights):
            tolerance = torch.finfo(param.dtype).eps * (1 if low else 64)
            assert (param.detach().double() - right).abs().max() <= tolerance * max(1.0, float(right.abs().max()))
            right.copy_(param.detach().double())
