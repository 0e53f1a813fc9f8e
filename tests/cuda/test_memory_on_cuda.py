"""Counted bytes on a GPU against those of its allocator."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def make_training(level, layers=8, width=2048):
    """Return a tower of linear layers, its optimizer and a function that does an iteration."""
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = torch.randn(256, width, device="cuda")

    def step():
        optimizer.zero_grad()
        loops.step(model(x).float().pow(2).mean(), optimizer)

    return model, optimizer, step


def test_the_count_agrees_with_the_allocator(level):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model, optimizer, step = make_training(level)
    step()
    torch.cuda.reset_peak_memory_stats()
    report = ampcompat.memory_report(model, optimizer, step)
    allocated = report.usage.cuda_allocated - before
    batch = 256 * 2048 * 4
    workspaces = 64 * 2**20  # of cuBLAS: one per handle and stream
    assert 0.97 * report.peak_total <= allocated <= 1.03 * report.peak_total + batch + workspaces
    assert report.usage.cuda_reserved >= report.usage.cuda_allocated
    assert 0.0 <= report.usage.fragmentation < 1.0
    assert "CUDA's allocator has allocated" in str(report)


def test_a_measured_step_gives_the_same_bits_on_a_gpu(level):
    results = []
    for measures in (False, True):
        torch.manual_seed(0)
        model, optimizer, step = make_training(level, layers=2, width=64)
        if measures:
            ampcompat.memory_report(model, optimizer, step)
        else:
            step()
            step()
        results.append([param.detach().clone() for param in model.parameters()])
        ampcompat.reset()
    assert all(map(torch.equal, *results))
