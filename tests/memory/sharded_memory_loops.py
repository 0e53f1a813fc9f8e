"""What ranks hold and send when they train a sharded model. Importable by spawned processes."""

import os

import torch
from helpers import loops
from torch.utils._python_dispatch import TorchDispatchMode

import ampcompat
from ampcompat import amp
from ampcompat.observers.memory.allocations import sizes_in


class Blocks(torch.nn.Module):
    """An embedding, a list of blocks and an output layer, of sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(203, 63)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(63, 251), torch.nn.ReLU(), torch.nn.Linear(251, 63)) for _ in range(3)
        )
        self.head = torch.nn.Linear(63, 203)

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Sent(TorchDispatchMode):
    """Counts the calls of collectives, and the bytes that a rank sends in them: its part to every other rank."""

    def __init__(self):
        super().__init__()
        self.calls, self.sent = {}, 0

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        name = str(function).split(".")[1]
        if str(function).startswith(("c10d.", "c10d_functional.")):
            ranks = torch.distributed.get_world_size()
            whole = {"_allgather_base_": args[0], "_reduce_scatter_base_": args[1]}.get(name)
            self.calls[name] = self.calls.get(name, 0) + 1
            self.sent += 0 if whole is None else whole.numel() * whole.element_size() * (ranks - 1) // ranks
        return function(*args, **(kwargs or {}))


def measured(rank, level, with_amp=True):
    """Train three steps; return the bytes of one rank by kind, those that it sent in the last step, and its calls."""
    from torch.distributed.fsdp import fully_shard

    os.environ["AMPCOMPAT_HALF_MATH"] = "off"
    torch.manual_seed(0)
    net = Blocks()
    policy = None if with_amp else {"mp_policy": ampcompat.fsdp_policy(level)}
    for module in list(net.blocks) + [net]:
        fully_shard(module, **(policy or {}))
    optimizer = torch.optim.Adam(net.parameters())
    if with_amp:
        amp.initialize(net, optimizer, opt_level=level, verbosity=0, init_scale=2.0**8)
    try:
        for step in range(3):
            optimizer.zero_grad()
            with Sent() as counts:
                loss = net(torch.arange(step, step + 8)).float().pow(2).mean()
                if with_amp:
                    loops.backward(loss, optimizer)
                else:
                    loss.backward()
                optimizer.step()
        sizes = {
            "parameters": sizes_in(list(net.parameters())),
            "gradients": sizes_in([param.grad for param in net.parameters()]),
            "optimizer": sizes_in(dict(optimizer.state)),
        }
        return {name: sum(found.values()) for name, found in sizes.items()}, counts.sent, counts.calls
    finally:
        ampcompat.reset()
