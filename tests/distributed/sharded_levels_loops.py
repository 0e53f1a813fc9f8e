"""O2, O3 and O5 under ``fully_shard``, by amp and by hand: a torch loop with the same ``MixedPrecisionPolicy``.

Importable by spawned processes.
"""

import os
from typing import NamedTuple

import torch
from helpers import loops
from sharded_loops import averaging
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat import amp

STEPS = 3
OVERFLOW_AT = 1
SCALE = 2.0**10  # no overflow but the one at that step, with any number of ranks
PER_RANK = 4  # samples of a micro-batch on one rank
WORDS, WIDTH = 11, 7  # not divisible by 2, 3 or 4: all shards are uneven, some are empty
LOW = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}


class Case(NamedTuple):
    """One training run: ``weights`` and ``way`` name variations of the network and of the loop."""

    level: str = "O2"
    sharding: str = "nested"  # or "whole", "hybrid"
    weights: str = "all"  # or "tied", "frozen", "batch norm"
    way: str = "plain"  # or "accumulation", "checkpointing", "compile", "stated policy"

    def __str__(self):
        return " ".join(self)


class Block(torch.nn.Module):
    """A feed-forward layer that is added to its input."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 13)
        self.down = torch.nn.Linear(13, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    """An embedding, two blocks, a norm and an output layer."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.norm = torch.nn.BatchNorm1d(WIDTH) if case.weights == "batch norm" else torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.is_checkpointed = case.way == "checkpointing"
        if case.weights == "tied":
            self.head.weight = self.embedding.weight
        if case.weights == "frozen":
            self.blocks[0].requires_grad_(False)
        if case.way == "compile":
            for block in self.blocks:
                block.compile(backend="aot_eager_default_partitioner")  # aot_eager imports inductor

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return self.head(self.norm(x))


def shard(net, case, policy=None, policy_of_norm=None):
    """Shard a network as its case says; the norm by itself, as batch norm needs it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks = torch.distributed.get_world_size()
    if case.sharding == "hybrid":
        copies = 1 if ranks % 2 else 2
        mesh = init_device_mesh("cpu", (copies, ranks // copies), mesh_dim_names=("copies", "shards"))
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    options = {} if policy is None else {"mp_policy": policy}
    fully_shard(net.norm, mesh=mesh, **({} if policy_of_norm is None else {"mp_policy": policy_of_norm}))
    if case.sharding != "whole":
        for block in net.blocks:
            fully_shard(block.up, mesh=mesh, **options)
            fully_shard(block, mesh=mesh, **options)
    return averaging(fully_shard(net, mesh=mesh, **options))


def micro_batches(step, case, ranks):
    """Return the micro-batches of a step, each (words, labels) of all ranks."""
    generator = torch.Generator().manual_seed(step)
    count = 2 if case.way == "accumulation" else 1
    return [torch.randint(0, WORDS, (2, ranks * PER_RANK), generator=generator) for _ in range(count)]


def of_rank(batch, rank):
    """Return the part of a micro-batch that a rank trains on."""
    return batch[:, rank * PER_RANK : (rank + 1) * PER_RANK]


def loss_of(net, batch, share):
    """Return the loss of a micro-batch, divided by the number of micro-batches."""
    words, labels = batch
    return torch.nn.functional.cross_entropy(net(words).float(), labels) / share


def make_optimizer(net):
    """Return an optimizer of the params that are trained."""
    return torch.optim.SGD([param for param in net.parameters() if param.requires_grad], lr=0.1, momentum=0.9)


def by_amp(net, case, parts, overflows, **options):
    """Train with amp; return the losses, the skips, the scale and the full weights.

    Args:
        parts: step -> its micro-batches.
        overflows: whether the loss of one step is infinite here.
        options: of ``amp.initialize``.
    """
    optimizer = make_optimizer(net)
    amp.initialize(net, optimizer, verbosity=0, init_scale=SCALE, **options)
    losses, skips = [], []
    for step in range(STEPS):
        batches = parts(step)
        optimizer.zero_grad()
        for index, batch in enumerate(batches):
            if hasattr(net, "set_requires_gradient_sync"):
                net.set_requires_gradient_sync(index + 1 == len(batches))
            loss = loss_of(net, batch, len(batches))
            losses.append(loss.detach())
            if overflows and step == OVERFLOW_AT:
                loss = loss * float("inf")
            loops.backward(loss, optimizer)
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        skips.append(amp.step_was_skipped(optimizer))
    return torch.stack(losses), skips, amp.state_dict()["loss_scaler0"]["loss_scale"], full(net.state_dict())


def by_hand(net, case, parts, overflows):
    """Train without amp, with a loss scaler written out here. See ``by_amp``."""
    optimizer, scale = make_optimizer(net), SCALE if case.level == "O2" else 1.0
    params = [param for group in optimizer.param_groups for param in group["params"]]
    losses, skips = [], []
    for step in range(STEPS):
        batches = parts(step)
        optimizer.zero_grad()
        for index, batch in enumerate(batches):
            net.set_requires_gradient_sync(index + 1 == len(batches))
            loss = loss_of(net, batch, len(batches))
            losses.append(loss.detach())
            if overflows and step == OVERFLOW_AT:
                loss = loss * float("inf")
            (loss * scale).backward()
        found = torch.zeros(())
        for param in params:
            local = param.grad.to_local()
            found += (~local.isfinite()).sum()
            local.mul_(1.0 / scale)
        torch.distributed.all_reduce(found)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        skips.append(bool(found) and case.level == "O2")
        if skips[-1]:
            scale /= 2
        else:
            optimizer.step()
    return torch.stack(losses), skips, scale, full(net.state_dict())


def full(state_dict):
    """Return the whole tensors of a state dict."""
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state_dict.items()}


def sharded_by_hand(case):
    """Return a network that torch computes in half: the weights of the level, the buffers at O3."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net = Net(case)
    policy = MixedPrecisionPolicy(param_dtype=LOW[case.level], reduce_dtype=torch.float32)
    if case.level == "O3":
        for module in net.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(LOW["O3"]) if buffer.is_floating_point() else buffer)
    is_kept = case.weights == "batch norm" and case.level != "O3"
    return shard(net, case, policy, None if is_kept else policy)


def both_ways(rank, cases):
    """Return ``{str(case): (outcome by amp, outcome by hand)}``."""
    os.environ["AMPCOMPAT_HALF_MATH"] = "off"  # torch's own kernels in both
    ranks, outcomes = torch.distributed.get_world_size(), {}
    for case in cases:

        def parts(step, case=case):
            return [of_rank(batch, rank) for batch in micro_batches(step, case, ranks)]

        overflows = rank == ranks - 1 and case.level == "O2"
        policy = ampcompat.fsdp_policy(case.level) if case.way == "stated policy" else None
        options = {"opt_level": case.level}
        if case.level == "O5" and case.weights != "all":  # changes nothing: shards are float32
            options["store_param_remainders"] = True
        try:
            amps = by_amp(shard(Net(case), case, policy, policy), case, parts, overflows, **options)
        finally:
            ampcompat.reset()
        outcomes[str(case)] = amps, by_hand(sharded_by_hand(case), case, parts, overflows)
    return outcomes


def one_process(case, ranks):
    """Return the outcome of amp in one process on the batches of all ranks; of O2 without a loss scale for O3."""
    net = Net(case._replace(way="plain"))
    options = {"opt_level": "O2", "loss_scale": 1.0} if case.level == "O3" else {"opt_level": case.level}
    try:
        return by_amp(net, case, lambda step: micro_batches(step, case, ranks), case.level == "O2", **options)
    finally:
        ampcompat.reset()
