"""What each rank of the distributed tests does; importable by spawned processes."""

import torch
from helpers import loops

import ampcompat
from ampcompat import amp

STEPS = 4


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]


def train(net, forward, level, inputs, overflow_at=None, **options):
    """Train on ``inputs``; return the scale, the skips and the float32 weights."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net, optimizer = amp.initialize(net, optimizer, opt_level=level, verbosity=0, **options)
    model = forward(net)
    skipped = []
    for step, batch in enumerate(inputs):
        optimizer.zero_grad()
        loss = model(batch).float().pow(2).mean()
        if step == overflow_at:
            loss = loss * float("inf")
        loops.step(loss, optimizer)
        skipped.append(amp.step_was_skipped(optimizer))
    return amp.state_dict()["loss_scaler0"]["loss_scale"], skipped, net.state_dict()


def one_process(level):
    """The reference: the joint batch in one process."""
    try:
        return train(make_net(), lambda net: net, level, batches())
    finally:
        ampcompat.reset()


def all_levels(rank, levels, overflow_rank):
    """Train every level under DistributedDataParallel, each rank on its half of every batch."""
    results = {}
    for level in levels:
        halves = [batch[rank::2] for batch in batches()]
        overflow_at = 1 if rank == overflow_rank else None
        wrap = torch.nn.parallel.DistributedDataParallel
        try:
            results[level] = train(make_net(), wrap, level, halves, overflow_at)
        finally:
            ampcompat.reset()
    return results


def own_seeds(rank, levels):
    """Train a model that every rank created with a different seed; return the masters."""
    results = {}
    for level in levels:
        net = make_net()
        torch.manual_seed(10 + rank)
        for param in net.parameters():
            param.data.normal_()
        try:
            train(net, torch.nn.parallel.DistributedDataParallel, level, [batch[rank::2] for batch in batches()])
            results[level] = {name: value.clone() for name, value in net.state_dict().items()}
        finally:
            ampcompat.reset()
    return results
