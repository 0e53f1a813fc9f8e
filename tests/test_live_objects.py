"""``support.live_objects``: the objects of given classes that exist in the process."""

import sys
import threading

import pytest
import torch

from ampcompat.support.live_objects import all_objects


@pytest.fixture
def often_switched_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_objects_of_subclasses_are_found_and_lazy_ones_are_not_loaded():
    class Lazy:
        @property
        def __class__(self):
            raise AssertionError("loaded")

    lazy, model = Lazy(), torch.nn.Sequential()
    found = all_objects(torch.nn.Module, Lazy)
    assert any(each is model for each in found)
    assert any(each is lazy for each in found)
    assert all(issubclass(type(each), (torch.nn.Module, Lazy)) for each in found)


def test_other_threads_may_build_tuples_meanwhile(often_switched_threads):
    done, errors = threading.Event(), []

    def build():
        while not done.is_set():
            try:
                tuple(number for number in range(50))
            except SystemError as error:  # a tuple that something else refers to cannot grow
                errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for each in threads:
        each.start()
    for _ in range(10):
        all_objects(torch.nn.Module)
    done.set()
    for each in threads:
        each.join()
    assert errors == []
