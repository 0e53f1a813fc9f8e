"""``python -m apex.parallel.multiproc script.py …``: one process of a script per GPU of this machine.

Rank 0 writes to the terminal, the others to ``GPU_<rank>.log``. The environment variables of torchrun (RANK,
LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set too; new scripts should use torchrun.
"""

import argparse
import os
import subprocess
import sys
import time

import torch


def main(arguments=None):
    """Start the processes, wait for them, and return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--world-size", type=int, default=max(torch.cuda.device_count(), 1))
    parser.add_argument("--rank")  # set below
    options, script = parser.parse_known_args(arguments)
    world_size = options.world_size
    workers, logs = [], []
    try:
        for rank in range(world_size):
            if rank:
                logs.append(open(f"GPU_{rank}.log", "w"))
            command = [sys.executable] + script + ["--world-size", str(world_size), "--rank", str(rank)]
            output = logs[-1] if rank else None
            workers.append(subprocess.Popen(command, stdout=output, env=_environment(rank, world_size)))
        return _wait(workers)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
                worker.wait()
        for log in logs:
            log.close()


def _wait(workers):
    """Return 0 after all have succeeded, or the first exit status that is not 0."""
    while True:
        statuses = [worker.poll() for worker in workers]
        for status in statuses:
            if status:
                return status
        if None not in statuses:
            return 0
        time.sleep(0.05)


def _environment(rank, world_size):
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return dict({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, **dict(os.environ, **own))


if __name__ == "__main__":
    sys.exit(main())
