"""What each rank of the diagnosis test does; importable by spawned processes."""

import contextlib
import io

import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis


class Planted(torch.nn.Module):
    """Makes inf in one step on one rank."""

    def __init__(self, at):
        super().__init__()
        self.at, self.step = at, 0

    def forward(self, x):
        self.step += 1
        return x + (float("inf") if self.step - 1 == self.at else 0.0)


def explode_on_one(rank):
    """Train where the model explodes on rank 1 in step 1; return the findings and what was printed."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), Planted(1 if rank == 1 else None), torch.nn.Linear(3, 1))
    optimizer, diagnosis = torch.optim.SGD(net.parameters(), lr=0.1), OverflowDiagnosis()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), ampcompat.session("O1", observers=[diagnosis]):
        amp.initialize(net, optimizer, init_scale=8.0)
        model = torch.nn.parallel.DistributedDataParallel(net)
        for _ in range(3):
            optimizer.zero_grad()
            loops.step(model(torch.ones(2, 3)).float().pow(2).mean(), optimizer)
    return diagnosis.findings, said.getvalue()
