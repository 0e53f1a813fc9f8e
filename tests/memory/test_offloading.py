"""Saved tensors and checkpoints on the CPU (``save_on_cpu``): the same weights at every level, a kind of their own."""

import pytest
import torch
from helpers import loops, networks
from helpers.fake_devices import needs_fake_steps
from helpers.networks import each_setting, initialize, session_of
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat.support.torch_compat import features

if not hasattr(getattr(torch.autograd, "graph", None), "save_on_cpu"):
    pytest.skip("this torch has no save_on_cpu (1.10)", allow_module_level=True)
save_on_cpu = torch.autograd.graph.save_on_cpu


def plain(block, x):
    return block(x)


def staged(block, x):
    with save_on_cpu():
        return block(x)


def staged_checkpoint(block, x):
    with save_on_cpu():
        return checkpoint(block, x.requires_grad_(), use_reentrant=False)


class Blocks(torch.nn.Module):
    """Blocks that are run by a function, which decides what is kept of them."""

    def __init__(self, run, width=24, count=3):
        super().__init__()
        torch.manual_seed(0)
        self.run = run
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width, track_running_stats=False), torch.nn.GELU()
            )
            for _ in range(count)
        )

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x


def trained(setting, run):
    """Return the weights after two steps."""
    with session_of(setting):
        model = Blocks(run).to(setting.high)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
        initialize(setting, model, optimizer, loss_scale=8.0)
        for step in range(2):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(16, 24, generator=generator).to(setting.high)
            loops.step(model(x).float().pow(2).mean(), optimizer)
            optimizer.zero_grad()
        return networks.weights_of(model)


@each_setting
@pytest.mark.parametrize("run", [staged, staged_checkpoint])
def test_training_is_bitwise_the_same_with_saved_tensors_on_the_cpu(setting, run):
    if run is staged_checkpoint and not features.has_nested_saved_tensor_hooks():
        pytest.skip("this torch has no checkpoints without reentrant backward passes")
    assert networks.differing(trained(setting, plain), trained(setting, run)) == []


@needs_fake_steps
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
def test_offloaded_copies_leave_the_gpu_and_are_in_no_sum(level):
    def estimated(run):
        return ampcompat.estimate(
            Blocks(run, 64, 6),
            lambda params: torch.optim.SGD(params, lr=0.1),
            level,
            loss=lambda model: model(torch.randn(1024, 64)).float().pow(2).mean(),
        )

    reports = [estimated(run) for run in (plain, staged, staged_checkpoint)]
    kept, offloaded, both = (report.peak_by_kind for report in reports)
    assert kept.offloaded is None
    assert offloaded.offloaded + offloaded.activations >= 0.9 * kept.activations
    assert offloaded.activations < 0.2 * kept.activations
    assert reports[1].peak_total < 0.8 * reports[0].peak_total
    assert 6 * 1024 * 64 * 2 <= both.offloaded < 0.5 * offloaded.offloaded
    assert "offloaded" in str(reports[1]) and "offloaded" not in str(reports[0])
