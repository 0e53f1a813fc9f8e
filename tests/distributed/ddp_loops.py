"""What each rank of the distributed tests does; importable by spawned processes."""

import torch
from helpers import loops, ranks

import ampcompat
from ampcompat import amp

STEPS = 4


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def seeded(net, seed):
    """Give a network the weights of a seed; return it."""
    torch.manual_seed(seed)
    for param in net.parameters():
        param.data.normal_()
    return net


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


def train_half(rank, net, level, overflow_at=None):
    """Train under DistributedDataParallel, on this rank's half of every batch."""
    halves = [batch[rank::2] for batch in batches()]
    return train(net, torch.nn.parallel.DistributedDataParallel, level, halves, overflow_at)


@ranks.at_each_level
def all_levels(rank, level, overflow_rank):
    """Train, with an overflow in the second step of one rank; return what ``train`` does."""
    return train_half(rank, make_net(), level, 1 if rank == overflow_rank else None)


@ranks.at_each_level
def own_seeds(rank, level):
    """Train a model that every rank created with a different seed; return the masters."""
    net = seeded(make_net(), 10 + rank)
    train_half(rank, net, level)
    return {name: value.clone() for name, value in net.state_dict().items()}
