"""Run a function in several processes that form a gloo group, and bring back what each returned."""

import os
import socket
import tempfile
import traceback

import torch


def run(function, *args, **options):
    """Return ``[function(rank, *args)]`` of ``world_size`` (2) processes; an error in one is an error here."""
    world_size = options.pop("world_size", 2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (function, args, world_size, _free_port(), folder)
        torch.multiprocessing.spawn(_rank, arguments, nprocs=world_size)
        return [torch.load(os.path.join(folder, str(rank))) for rank in range(world_size)]


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank(rank, function, args, world_size, port, folder):
    torch.set_num_threads(1)
    address = "tcp://127.0.0.1:{}".format(port)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, *args), os.path.join(folder, str(rank)))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        torch.distributed.destroy_process_group()
