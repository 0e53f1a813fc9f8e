"""Ranks that train different params, such as shards: no gradient is all-reduced. Importable by spawned processes."""

import torch
from helpers import loops
from helpers.precision import HIGH

import ampcompat
from ampcompat import amp

#: By step: which rank's gradients overflow.
OVERFLOWS = {1: 1, 2: 0}
#: In this step the loss of rank 0 reaches none of its params.
UNTOUCHED = 3
STEPS = 5


def _loss(rank, step, net):
    generator = torch.Generator().manual_seed(10 * step + rank)
    if step == UNTOUCHED and rank == 0:
        return torch.ones((), dtype=HIGH, requires_grad=True) * 2.0
    loss = net(torch.randn(4, 6, generator=generator).to(HIGH)).pow(2).mean()
    return loss * float("inf") if OVERFLOWS.get(step) == rank else loss


def own_params(rank, level, grouping, optimizer_options):
    """Train; return ([scale and skip by step], weights).

    Args:
        grouping: "none", "all ranks" or "a group".
    """
    torch.manual_seed(rank)
    net = torch.nn.Linear(6, 3).to(HIGH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, **optimizer_options)
    group = {"none": lambda: None, "all ranks": lambda: True, "a group": lambda: torch.distributed.new_group([0, 1])}
    amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic", process_group=group[grouping]())
    history = []
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            loops.step(_loss(rank, step, net), optimizer)
            history.append((amp.state_dict()["loss_scaler0"]["loss_scale"], amp.step_was_skipped(optimizer)))
        return history, net.state_dict()
    finally:
        ampcompat.reset()


def every_case(rank, cases):
    """Return the outcome of ``own_params`` by case."""
    return {case: own_params(rank, case[0], case[1], dict(case[2])) for case in cases}
