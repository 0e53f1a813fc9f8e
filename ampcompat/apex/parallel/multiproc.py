"""``python -m apex.parallel.multiproc script.py …``: one process of a script per GPU of this machine.

Rank 0 writes to the terminal, the others to ``GPU_<rank>.log``. The variables of torchrun (RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set too; new scripts should use torchrun.
"""

import os
import subprocess
import sys
import time

import torch


def main(arguments=None):
    """Start the processes, wait for them, and return the first exit status that is not 0."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    world_size = int(_value(arguments, "--world-size", max(torch.cuda.device_count(), 1)))
    workers, logs = [], []
    try:
        for rank in range(world_size):
            if rank:
                logs.append(open("GPU_{}.log".format(rank), "w"))
            command = [sys.executable] + _with(arguments, **{"--world-size": world_size, "--rank": rank})
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


def _value(arguments, option, default):
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(option + "="):
            return argument.partition("=")[2]
    return default


def _with(arguments, **options):
    """Return the arguments with these options set; existing options are replaced."""
    arguments = list(arguments)
    for option, value in options.items():
        if option in arguments[:-1]:
            arguments[arguments.index(option) + 1] = str(value)
        elif any(argument.startswith(option + "=") for argument in arguments):
            arguments = [option + "=" + str(value) if each.startswith(option + "=") else each for each in arguments]
        else:
            arguments += [option, str(value)]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
