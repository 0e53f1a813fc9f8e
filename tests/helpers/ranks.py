"""Run a function in several processes that form a gloo group, and return the result of each.

The processes meet through a file, since a free port may be taken between the test for it and its use. Ranks are forked
from a server process that has imported torch and trained nothing: importing torch again would take most of their time.
"""

import functools
import os
import sys
import tempfile
import traceback

import torch

import ampcompat
from helpers import forked, half_kernels


def run(function, *args, **options):
    """Return ``[function(rank, *args)]`` of ``world_size`` (2) processes; an error in one is an error here."""
    world_size = options.pop("world_size", 2)
    with tempfile.TemporaryDirectory() as folder:
        _start((function, args, world_size, folder, dict(os.environ)), world_size)
        return [torch.load(os.path.join(folder, str(rank))) for rank in range(world_size)]


def at_each_level(function):
    """Return a function of a rank and levels: what ``function(rank, level, …)`` returns at each, by level."""

    @functools.wraps(function)
    def by_level(rank, levels, *args):
        results = {}
        for level in levels:
            try:
                results[level] = function(rank, level, *args)
            finally:
                ampcompat.reset()
        return results

    return by_level


def _start(arguments, world_size):
    """Run ``_rank`` with these arguments in ``world_size`` processes and wait for them."""
    start = getattr(torch.multiprocessing, "start_processes", None)
    if start is None:  # torch 1.3
        torch.multiprocessing.spawn(_rank, arguments, nprocs=world_size)
    else:
        start(_rank, arguments, nprocs=world_size, start_method=forked.start_method())


def _rank(rank, function, args, world_size, folder, environment):
    forked.end_with_the_server()
    os.environ.clear()  # the server's, which has been there since the first test that used it
    os.environ.update(environment)
    forked.keep_process_groups()
    torch.set_num_threads(1)
    os.environ.update(half_kernels.stand_in())
    # A machine with a host name that it cannot resolve is still a machine with a loopback device.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = "file://{}".format(os.path.join(folder, "meeting"))
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, *args), os.path.join(folder, str(rank)))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        torch.distributed.destroy_process_group()
    # All results are printed and saved. Threads of torch that still run at interpreter shutdown can abort it (seen with
    # torch 2.13 on a busy machine, after an error from sharding in the middle of a pass).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
