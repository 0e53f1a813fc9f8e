"""``support.live_objects``: the objects of given classes that exist in the process."""

import torch
from helpers.threads import in_threads

from ampcompat.support.live_objects import all_objects


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


def test_other_threads_may_build_tuples_meanwhile():
    def build_and_look():
        for _ in range(5):
            for _ in range(1000):
                tuple(number for number in range(50))  # which cannot grow if something else refers to it: SystemError
            all_objects(torch.nn.Module)

    assert in_threads(build_and_look) == []
