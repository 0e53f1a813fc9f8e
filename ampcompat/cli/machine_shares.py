"""The share of the machine that each of several runs gets: cores, a GPU, and a port for its launcher."""

import os
import socket
import threading
from typing import Dict, List, NamedTuple

#: Variables for the number of threads of torch and BLAS libraries. Those that the user sets are kept.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_of_thread = threading.local()


class Share(NamedTuple):
    """The cores of a run, and its environment variables."""

    cores: List[int]
    variables: Dict[str, str]


def share_out(jobs, gpus):
    """Return a ``Share`` for each of ``jobs`` concurrent runs; ``gpus`` has as many entries, or none."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    shares = []
    for index in range(jobs):
        own = cores[index * len(cores) // jobs : (index + 1) * len(cores) // jobs] or [cores[index % len(cores)]]
        variables = {name: str(len(own)) for name in THREADS if name not in os.environ and jobs > 1}
        variables.update({"CUDA_VISIBLE_DEVICES": gpus[index]} if gpus else {})
        shares.append(Share(own if jobs > 1 else cores, variables))
    return shares


def take(shares):
    """Assign the last of ``shares`` to this thread: the processes that it starts run on these cores."""
    _of_thread.share = shares.pop()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _of_thread.share.cores)


def variables(has_launcher):
    """Return the environment variables of this thread's share, for a launcher with a free port of its own."""
    if not has_launcher:
        return _of_thread.share.variables
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    # torchrun reads PET_MASTER_PORT in place of --master_port.
    return dict(_of_thread.share.variables, MASTER_PORT=port, PET_MASTER_PORT=port)
