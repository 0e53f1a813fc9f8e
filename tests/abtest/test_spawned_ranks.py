"""``torch.multiprocessing.spawn`` in recorded scripts: rank 0 runs in the recorded process, the others in their own."""

import os
import random
import threading
import types

import pytest
import torch
from helpers import forked, half_kernels
from helpers.processes import environment

from ampcompat.abtest import Report
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import subprocess_child
from ampcompat.abtest.running.spawned_ranks import run_first_rank_here
from ampcompat.support.patching import PatchStack

SCRIPT = """
import sys
import torch
import torch.multiprocessing as mp
from apex import amp
from apex.parallel import DistributedDataParallel


def work(rank, ranks, meeting):
    torch.distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    model = torch.nn.Linear(4, 1)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), opt_level="O1")
    model = DistributedDataParallel(model)
    while True:
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2, args=(2, sys.argv[1]))
"""


class Processes:
    """Stands in for the context of started processes; calls the function of the first when it is joined."""

    def __init__(self, function, args, fails):
        self.processes = [types.SimpleNamespace(exitcode=1 if fails else None, terminate=self.terminate)]
        self.function, self.args, self.fails = function, args, fails
        self.is_terminated, self.has_begun = threading.Event(), threading.Event()

    def join(self, timeout=None):
        if self.fails:
            raise RuntimeError("Traceback:\nValueError: no data")
        if not self.has_begun.is_set():
            self.has_begun.set()
            self.function(0, *self.args)
        return True

    def terminate(self):
        self.is_terminated.set()


@pytest.fixture
def spawned(monkeypatch):
    """Return a function that runs the ranks of a function as recorded scripts do; started processes are stood in for.

    It returns the arguments of the original ``spawn``, its results, and the errors of other ranks.
    """

    def run(fn, fails=False, **options):
        calls, started, errors = [], [], []

        def original(fn, args=(), nprocs=1, join=True, **rest):
            calls.append((nprocs, join, rest))
            started.append(Processes(fn, args, fails))
            return started[-1]

        monkeypatch.setattr(torch.multiprocessing, "spawn", original)
        with PatchStack() as patches:
            run_first_rank_here(patches, 5, 1, errors.append)
            try:
                torch.multiprocessing.spawn(fn, **options)
            except ZeroDivisionError as error:
                errors.append(error)
        return calls, started, errors

    return run


def test_the_only_rank_runs_here(spawned):
    seen = []
    calls, _, errors = spawned(lambda rank, name: seen.append((rank, name, threading.current_thread())), args=("a",))
    assert (calls, errors) == ([], []) and seen == [(0, "a", threading.main_thread())]


def test_the_other_ranks_are_started_with_their_numbers_and_the_seeds_of_the_repeat(spawned):
    seen = {}
    calls, _, errors = spawned(lambda rank: seen.update({rank: rank and random.random()}), nprocs=3, daemon=True)
    assert (calls, errors) == ([(2, False, {"daemon": True})], []) and sorted(seen) == [0, 1]
    assert seen[1] == random.Random(5 + 1000003).random()


@pytest.mark.parametrize("nprocs, join", [(2, False), (0, True)])
def test_without_join_or_without_ranks_nothing_runs_here(spawned, nprocs, join):
    calls, started, _ = spawned(pytest.fail, nprocs=nprocs, join=join)
    assert calls == [(nprocs, join, {})] and started[0].function is pytest.fail


def test_an_error_of_rank_0_ends_the_others(spawned):
    _, started, errors = spawned(lambda rank: 1 // rank, nprocs=2)
    assert isinstance(errors[-1], ZeroDivisionError) and started[0].is_terminated.is_set()


def test_an_error_of_another_rank_is_told_once(spawned):
    _, started, errors = spawned(lambda rank: None, nprocs=2, fails=True)
    assert [str(error).splitlines()[-1] for error in errors] == ["ValueError: no data"]


@pytest.mark.parametrize("index, names", [(1, "rank 2"), (None, "a rank")])
def test_an_error_of_another_rank_ends_the_run_and_names_the_rank(monkeypatch, capsys, index, names):
    codes, recorder, error = [], Recorder(), RuntimeError("Traceback:\nValueError: no data\n")
    if index is not None:  # torch before 1.6 or so does not tell
        error.error_index = index
    monkeypatch.setattr(os, "_exit", codes.append)
    subprocess_child._end_process(recorder, error)
    assert (codes, recorder.run.status) == ([1], "failed")
    assert recorder.run.error == names + ": ValueError: no data"
    assert "ValueError: no data" in capsys.readouterr().err


def test_a_script_that_spawns_its_ranks_is_compared(tmp_path):
    script, saved = tmp_path / "training.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    options = "--levels", "O1", "--baseline", "O1", "--no-control", "--steps", "3", "--json", saved
    done = forked.run(forked.ab, *options, script, tmp_path / "meeting", env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stdout + done.stderr
    run = Report.load(str(saved)).runs["O1"]
    assert (run.status, len(run.step_seconds), run.samples) == ("stopped", 3, [3, 3, 3])
