"""Passes under no_sync, as each rank runs them; importable by spawned processes."""

import torch
from helpers import loops
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat import amp
from ampcompat.apex.parallel import DistributedDataParallel as ApexStyle
from ampcompat.launch.forced_levels.forced_level import forced
from ampcompat.support.torch_compat import features

MICRO, STEPS = 3, 3
WRAPPERS = {"torch": torch.nn.parallel.DistributedDataParallel, "apex": ApexStyle}


class Recomputed(torch.nn.Sequential):
    """Layers under one checkpoint."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def make_net(kind=torch.nn.Sequential):
    """Return a net; O2 keeps the norm's params in float32, so that both kinds of master are there."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 3)]
    return kind(*layers).eval()  # batch statistics would differ between ranks and the joint batch


def micro_batches():
    """Return STEPS groups of MICRO joint batches."""
    generator = torch.Generator().manual_seed(2)
    return [[torch.randn(8, 6, generator=generator) for _ in range(MICRO)] for _ in range(STEPS)]


def start(level, kind=torch.nn.Sequential, **options):
    net = make_net(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    amp.initialize(net, optimizer, opt_level=level, verbosity=0, **options)
    return net, optimizer


def loss_of(model, batch):
    return model(batch).float().pow(2).mean()


def outcome(net, skipped):
    state = amp.state_dict()["loss_scaler0"]
    return {"scaler": state, "skipped": skipped, "weights": {k: v.clone() for k, v in net.state_dict().items()}}


def plain(model, optimizer, share, inject=None, forward_alone=False, delays=False):
    """Use ``amp.scale_loss`` under no_sync; return which steps were skipped.

    Args:
        inject: (step, micro-batch) of a loss that is infinite.
        forward_alone: whether backward passes are outside of no_sync.
        delays: whether passes that are not reduced delay unscaling.
    """
    skipped = []
    for step, group in enumerate(micro_batches()):
        optimizer.zero_grad()
        for index, batch in enumerate(group):
            waits = index < MICRO - 1
            options = {"delay_unscale": waits} if delays else {}
            with model.no_sync() if waits else torch.enable_grad():
                loss = loss_of(model, batch[share]) / MICRO
                if (step, index) == inject:
                    loss = loss * float("inf")
                if not forward_alone:
                    loops.backward(loss, optimizer, **options)
            if forward_alone:
                loops.backward(loss, optimizer, **options)
        optimizer.step()
        skipped.append(amp.step_was_skipped(optimizer))
    return skipped


def delayed(model, optimizer, share, inject=None):
    """Delay unscaling until the pass that is reduced, as Apex's documentation says."""
    return plain(model, optimizer, share, inject, delays=True)


def alone(level, **options):
    """Return the outcome of the joint, large batches in one process."""
    net, optimizer = start(level, **options)
    skipped = []
    try:
        for group in micro_batches():
            optimizer.zero_grad()
            loops.backward(loss_of(net, torch.cat(group)), optimizer)
            optimizer.step()
            skipped.append(amp.step_was_skipped(optimizer))
        return outcome(net, skipped)
    finally:
        ampcompat.reset()


def cases(levels):
    """Yield (key, level, wrapper, loop, options of initialize, options of the loop, rank of the overflow)."""
    for level in levels:
        options = {"init_scale": 2.0**8} if level in ("O1", "O2") else {"loss_scale": 2.0**4}
        for name in WRAPPERS:
            for loop in (plain, delayed):
                yield (level, name, loop.__name__), level, name, loop, options, {}, None
                if level in ("O1", "O2"):
                    place = {"inject": (1, 0)}
                    yield (level, name, loop.__name__, "overflow"), level, name, loop, options, place, 1
            if features.is_version_within(oldest="1.11"):  # which has checkpoints without reentrant passes
                yield (level, name, "recomputed"), level, name, plain, options, {}, None
    yield ("O2", "torch", "forward alone"), "O2", "torch", plain, options, {"forward_alone": True}, None


def both_ranks(rank, levels):
    """Run every case on this rank's half of the batches."""
    found = {}
    for key, level, wrapper, loop, options, place, overflow_rank in cases(levels):
        try:
            kind = Recomputed if "recomputed" in key else torch.nn.Sequential
            net, optimizer = start(level, kind, **options)
            inject = dict(place) if overflow_rank in (None, rank) else {}
            found[key] = outcome(net, loop(WRAPPERS[wrapper](net), optimizer, slice(rank, None, 2), **inject))
        finally:
            ampcompat.reset()
    found["heads"], found["never"] = unused_params(rank), never_reduced(rank)
    found["read"] = {level: read_between_passes(rank, level) for level in levels}
    return found


def read_between_passes(rank, level):
    """Return what ``.grad`` shows after a pass under no_sync and after one that is reduced."""
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale=16.0)
    model = torch.nn.parallel.DistributedDataParallel(net)
    try:
        with model.no_sync():
            loops.backward(loss_of(model, torch.eye(3)[rank : rank + 1]), optimizer)
        own = net.weight.grad.float().clone()
        loops.backward(loss_of(model, torch.eye(3)[rank : rank + 1]), optimizer)
        return own, net.weight.grad.float()
    finally:
        ampcompat.reset()


def never_reduced(rank):
    """Overflow on rank 1 and step on unreduced gradients; return (skipped, the scale, remaining hooks)."""
    net, optimizer = start("O2", init_scale=2.0**8)
    model = torch.nn.parallel.DistributedDataParallel(net)
    try:
        with model.no_sync():
            loops.backward(loss_of(model, torch.ones(2, 6)) * (float("inf") if rank else 1.0), optimizer)
        optimizer.step()
        found = amp.step_was_skipped(optimizer), amp.state_dict()["loss_scaler0"]["loss_scale"]
    finally:
        ampcompat.reset()
    return found + (len(model._forward_pre_hooks),)


def unused_params(rank):
    """Use the head of this rank alone, first in a pass under no_sync; return the gradients of the masters."""
    torch.manual_seed(1)
    net = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(3)])
    body = Heads(net)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.5)
    amp.initialize(body, optimizer, opt_level="O2", verbosity=0, loss_scale=2.0)
    model = torch.nn.parallel.DistributedDataParallel(body, find_unused_parameters=True)
    try:
        with model.no_sync():
            loops.backward(model(torch.ones(1, 2), rank).float().sum(), optimizer)
        loops.backward(model(torch.ones(1, 2), rank).float().sum(), optimizer)
        grads = [param.grad for param in amp.master_params(optimizer)]
        return [None if grad is None else grad.clone() for grad in grads]
    finally:
        ampcompat.reset()


class Heads(torch.nn.Module):
    """Uses one of its layers."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, index):
        return self.layers[index](x)


def first_pass(rank, level):
    """Train without Apex under a forced level, the first pass under no_sync.

    Returns:
        The gradients after the first pass and after the second, which is reduced; how often a forward hook and a
        communication hook were called; and the number of hooks that are left in the end, also on a wrapper made later.
    """
    with forced(level):
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = torch.nn.parallel.DistributedDataParallel(net)
        calls = []
        model.register_forward_hook(lambda *_: calls.append("forward"))
        model.register_comm_hook(calls, averaged)
        x, grads = torch.eye(3)[rank], []
        with model.no_sync():
            (model(x).float().sum() / 16).backward()  # 1, times the scale, would overflow in float16
        grads.append(net.weight.grad.float().clone())
        (model(x).float().sum() / 16).backward()
        grads.append(net.weight.grad.float().clone())
        optimizer.zero_grad()
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        later = torch.nn.parallel.DistributedDataParallel(net)
        later(x).float().sum().backward()
    return grads, calls, len(model._forward_pre_hooks) + len(later._forward_pre_hooks)


def averaged(calls, bucket):
    """Average the gradients of the ranks: a communication hook of DistributedDataParallel."""
    calls.append("reduced")
    done = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])
