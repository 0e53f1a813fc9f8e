"""Checkpoints of sharded models, by the functions of ``examples/sharded.py``. Importable by spawned processes."""

import contextlib
import io
import os
import signal
import sys

import torch
from helpers import loops
from helpers.processes import ROOT
from sharded_levels_loops import SCALE, Case, Net, loss_of, shard

import ampcompat
from ampcompat import amp
from ampcompat.apex import install

BATCH = 12  # divisible by each number of ranks
CASE = Case(weights="tied")


def example():
    """Import ``examples/sharded.py``."""
    install.install()
    sys.path.insert(0, os.path.join(ROOT, "examples"))
    import sharded

    return sharded


def made(is_sharded=True):
    """Return a network and its optimizer."""
    net = shard(Net(CASE), CASE) if is_sharded else Net(CASE)
    return net, torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4)


def train(net, optimizer, steps, rank=0, ranks=1):
    """Train; one loss is infinite, so that the loss scale is worth saving."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        batch = torch.randint(0, 11, (2, BATCH), generator=generator)[:, rank::ranks]
        optimizer.zero_grad()
        loops.step(loss_of(net, batch, 1.0 if step != 1 else 0.0), optimizer)


def state_of(net, optimizer):
    """Return all that a checkpoint holds, with whole tensors on every rank."""
    return whole(example().contents(net, optimizer, 0))


def whole(value):
    """Return a copy of a nest of dicts with whole tensors."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.clone() if isinstance(value, torch.Tensor) else value


def resumed(rank, folder, last, saves=True):
    """Load what is in a folder, train up to a step and save; return the states after loading and in the end."""
    os.environ["AMPCOMPAT_HALF_MATH"] = "off"
    net, optimizer = made()
    amp.initialize(net, optimizer, opt_level="O2", init_scale=SCALE, verbosity=0)
    try:
        done = example().load(folder, net, optimizer)
        loaded = state_of(net, optimizer) if done else None  # torch makes an optimizer's state by stepping on zeros
        train(net, optimizer, range(done + 1, last + 1), rank, torch.distributed.get_world_size())
        if saves:
            example().save(folder, net, optimizer, last)
        return loaded, state_of(net, optimizer)
    finally:
        ampcompat.reset()


def killed(rank, folder, last, victim, moment):
    """Train and save as ``resumed``, and be killed before the ``moment``-th change of a file while saving.

    Returns:
        The number of changes, if that is reached.
    """
    net, optimizer = made()
    amp.initialize(net, optimizer, opt_level="O2", init_scale=SCALE, verbosity=0)
    done = example().load(folder, net, optimizer)
    train(net, optimizer, range(done + 1, last + 1), rank, torch.distributed.get_world_size())
    changes = []

    def before(event, arguments):
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if rank == victim and (writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")):
            if folder in str(arguments[0]):
                changes.append((event,) + arguments[:2])
                if len(changes) > moment:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)
    example().save(folder, net, optimizer, last)
    return [str(each) for each in changes]


def undisturbed(rank, arguments):
    """Run ``examples/sharded.py`` in this group; return what it prints."""
    sharded, printed = example(), io.StringIO()
    sys.argv = ["sharded.py"] + arguments
    with contextlib.redirect_stdout(printed):
        sharded.train(sharded.parse_args())
    ampcompat.reset()
    return printed.getvalue()
