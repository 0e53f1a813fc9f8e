"""Records scripts that call ``torch.multiprocessing.spawn``: rank 0 runs in the recorded process."""

import threading

import torch

from ...support.patching import PatchStack
from . import seeding


def run_first_rank_here(patches, seed, repeat, on_failure):
    """Make ``torch.multiprocessing.spawn`` call its function for rank 0 in this process, and start the other ranks.

    When rank 0 ends with an error, or at the limit of steps, the others are terminated. With ``join=False``, the
    function runs in other processes, as usual, and the script continues meanwhile.

    Args:
        patches: the ``PatchStack`` that undoes it.
        seed, repeat: as for ``seeding``; the other ranks are seeded like this process.
        on_failure: called in a thread with the error of another rank; it must end this process, since rank 0 may be
            waiting for the other.
    """

    def spawn(original, fn, args=(), nprocs=1, join=True, **options):
        if not join or nprocs < 1:
            return original(fn, args, nprocs, join, **options)
        if nprocs == 1:
            return fn(0, *args)
        others = original(_run_other_rank, (fn, args, seed, repeat), nprocs - 1, join=False, **options)
        watch = _Watch(others, on_failure)
        try:
            fn(0, *args)
        except BaseException:
            watch.end()
            raise
        watch.join()

    patches.wrap(torch.multiprocessing, "spawn", spawn)


def _run_other_rank(index, fn, args, seed, repeat):
    seeding.seed_all(seed, repeat)
    with PatchStack() as patches:
        seeding.shift_seeds(repeat, patches)
        fn(index + 1, *args)


class _Watch(threading.Thread):
    """Waits for the processes of the other ranks; calls ``on_failure`` with the first error.

    Args:
        others: the context that ``torch.multiprocessing.spawn`` returned.
        on_failure: see ``run_first_rank_here``.
    """

    def __init__(self, others, on_failure):
        super().__init__(daemon=True)
        self._others, self._on_failure = others, on_failure
        self._has_ended = False
        self.start()

    def run(self):
        try:
            while not self._others.join(timeout=1.0):
                pass
        except Exception as error:
            if not self._has_ended:
                self._on_failure(error)

    def end(self):
        """Terminate the others, unless one of them has failed: its error may be the cause of rank 0's."""
        if any(process.exitcode for process in self._others.processes):
            return self.join()
        self._has_ended = True
        for process in self._others.processes:
            process.terminate()
