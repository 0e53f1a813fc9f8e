"""What each rank of the distributed tests does; importable by spawned processes."""

import functools

import torch
from helpers import loops, ranks

import ampcompat
from ampcompat import amp
from ampcompat.apex import parallel

STEPS = 4


WRAPPERS = {
    "torch": torch.nn.parallel.DistributedDataParallel,
    "apex": functools.partial(parallel.DistributedDataParallel, message_size=50),  # several messages
}


def make_net(seed=1):
    torch.manual_seed(seed)
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


@ranks.at_each_level
def own_seeds(rank, level, wrapper, overflow_rank=None):
    """Train a model that every rank made of a seed of its own on this rank's half of every batch.

    The loss of one rank may overflow in the second step.
    """
    halves = [batch[rank::2] for batch in batches()]
    return train(make_net(1 + rank), WRAPPERS[wrapper], level, halves, 1 if rank == overflow_rank else None)
