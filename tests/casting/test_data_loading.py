"""Data loading is not cast, with a model on the CPU: neither a ``Dataset`` nor the rest that a ``DataLoader`` calls."""

import sys
import threading

import pytest
import torch
import torch.utils.data
from helpers.precision import HIGH, IS_STAND_IN, LOW, PAIR
from helpers.processes import python
from helpers.threads import in_thread

import ampcompat
from ampcompat import amp
from ampcompat.support import unversioned_writes

FAR = 1e5  # a coordinate that float16 does not have


def product():
    """Return a product that is cast wherever casts are in force: then it is inf, or not in the high dtype."""
    return torch.mm(torch.full((1, 1), FAR, dtype=HIGH), torch.ones(1, 1, dtype=HIGH))


def is_exact(tensor):
    return tensor.dtype is HIGH and bool((tensor == FAR).all())


class Coordinates(torch.utils.data.Dataset):
    """Each item: a product, one made when the worker began, one made in a thread."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        made = [product(), self.begun if hasattr(self, "begun") else product()]
        return made + [in_thread(product)] if torch.utils.data.get_worker_info() is not None else made


class Stream(torch.utils.data.IterableDataset if hasattr(torch.utils.data, "IterableDataset") else object):
    """Computes when its iterator is made, and at each item."""

    def __iter__(self):
        return Items(product())


class Items:
    def __init__(self, first):
        self.left = [first]

    def __next__(self):
        if len(self.left) > 3:
            raise StopIteration
        self.left.append(product())
        return self.left[-2:]


class Order(torch.utils.data.Sampler):
    """A sampler that computes."""

    def __init__(self):
        pass

    def __len__(self):
        return 4

    def __iter__(self):
        return iter(range(4 if is_exact(product()) else 0))


def collate(items):
    return [tensor for item in items for tensor in item] + [product()]


def begin(worker):
    torch.utils.data.get_worker_info().dataset.begun = product()


@pytest.fixture
def in_session(backend):
    """A session at O1 with a model on the CPU."""
    model = torch.nn.Linear(1, 1).to(HIGH)
    with ampcompat.session("O1", backend=backend, dtypes=PAIR, verbosity=0):
        yield amp.initialize(model, verbosity=0)


def seen(loader):
    """Return all tensors of one epoch."""
    found = [tensor for batch in loader for tensor in batch]
    assert product().dtype is LOW  # casts are in force around it, and again after it
    return found


FORKED = {"num_workers": 1, "multiprocessing_context": "fork"}
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.mark.parametrize("dataset", [Coordinates, Stream])
def test_loading_in_the_main_process_is_not_cast(in_session, dataset):
    sampler = {} if dataset is Stream else {"sampler": Order()}
    found = seen(torch.utils.data.DataLoader(dataset(), batch_size=2, collate_fn=collate, **sampler))
    assert len(found) >= 8 and all(map(is_exact, found))


@needs_fork
def test_forked_workers_are_not_cast_and_neither_are_their_threads(in_session):
    loader = torch.utils.data.DataLoader(Coordinates(), 2, collate_fn=collate, worker_init_fn=begin, **FORKED)
    found = seen(loader)
    assert len(found) == 14 and all(map(is_exact, found))


@needs_fork
def test_worker_forked_while_another_thread_holds_the_lock_does_not_hang(in_session):
    held, done = threading.Event(), threading.Event()

    def hold():
        with unversioned_writes._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    iterator = iter(torch.utils.data.DataLoader(Coordinates(), 4, collate_fn=collate))
    thread.start()
    try:
        held.wait(60)
        # Forked by hand: the process that loads would wait for the lock itself.
        context = torch.multiprocessing.get_context("fork")
        process = context.Process(target=next, args=(iterator,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    finally:
        done.set()
        thread.join()


UNGUARDED = """
import torch, torch.utils.data, ampcompat
from ampcompat import amp
from ampcompat.opt_levels import {pair} as PAIR

session = ampcompat.session("O1", dtypes=PAIR, verbosity=0)
session.__enter__()
model = torch.nn.Linear(1, 1).to(PAIR.high)
amp.initialize(model, verbosity=0)


class Products(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.mm(torch.full((1, 1), 1e5, dtype=PAIR.high), torch.ones(1, 1, dtype=PAIR.high))


if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Products(), num_workers=1, multiprocessing_context="spawn"):
        print(batch.dtype is PAIR.high, batch.item())
"""


def test_spawned_workers_of_a_script_without_a_guard_are_not_cast(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(pair="STAND_IN" if IS_STAND_IN else "HALF"))
    finished = python(script)
    assert finished.stdout.split() == ["True", "100000.0"] * 2, finished.stderr
