"""Overflow diagnosis on a GPU: no wait for the device until a step is skipped; overflows of real half are found."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def make_training(level, diagnosis, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    x = torch.randn(16, 1, 8, 8, device="cuda")

    def step(factor=1.0):
        optimizer.zero_grad()
        loops.step(model(x).float().pow(2).mean() * factor, optimizer)

    return model, step


def test_no_pass_waits_for_the_device(level):
    diagnosis = OverflowDiagnosis()
    with ampcompat.session(level, observers=[diagnosis], verbosity=0):
        _, step = make_training(level, diagnosis, loss_scale="dynamic", init_scale=8.0)
        for _ in range(2):  # the first passes find their places
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(12):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert diagnosis.findings == []


def test_a_late_verdict_is_put_down_to_its_step(level):
    diagnosis = OverflowDiagnosis()
    with ampcompat.session(level, observers=[diagnosis], verbosity=0):
        _, step = make_training(level, diagnosis, loss_scale="dynamic", init_scale=8.0)
        for number in range(6):
            step(float("nan") if number == 3 else 1.0)
    assert [number for number, *_ in diagnosis.findings] == [3]
    assert "The loss was nan" in diagnosis.findings[0][1]


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_half_overflow_in_a_layer_is_found(each):
    diagnosis = OverflowDiagnosis()
    with ampcompat.session(each, observers=[diagnosis], verbosity=0):
        model, step = make_training(each, diagnosis, init_scale=8.0)
        step()
        with torch.no_grad():
            model[4].weight.add_(3e4)
        step()
    assert "In the forward pass inf came first from module 4, in float16" in diagnosis.findings[0][1]
    assert "keep layers in float32" in diagnosis.findings[0][1]
