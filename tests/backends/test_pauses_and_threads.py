"""Casts reach every thread; pauses belong to one."""

import threading

import pytest
import torch
import torch.nn.functional as F
from opened import PAIRS, each_native, each_setting, opened


def product_dtype(setting):
    a = torch.ones(2, 2, dtype=PAIRS[setting[1]].high)
    return F.linear(a, a).dtype


def in_thread(function):
    """Return what the function returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@each_setting
def test_pauses_nest_and_end_when_the_body_raises(setting):
    low, high = PAIRS[setting[1]]
    with opened(setting) as backend:
        with pytest.raises(ZeroDivisionError):
            with backend.paused():
                with backend.paused():
                    assert product_dtype(setting) is high
                assert product_dtype(setting) is high and not backend.active()
                raise ZeroDivisionError
        assert product_dtype(setting) is low and backend.active()


@each_setting
def test_entering_inside_a_pause_leaves_it_paused(setting):
    high = PAIRS[setting[1]].high
    with opened(setting) as backend, backend.paused():
        with backend.entered():
            assert product_dtype(setting) is high


@each_setting
def test_casts_reach_threads_started_afterwards(setting):
    with opened(setting) as backend:
        assert in_thread(lambda: (product_dtype(setting), backend.active())) == (PAIRS[setting[1]].low, True)


@each_setting
def test_pause_of_one_thread_does_not_reach_another(setting):
    low, high = PAIRS[setting[1]]
    with opened(setting) as backend:
        with backend.paused():
            assert in_thread(lambda: product_dtype(setting)) is low
            assert product_dtype(setting) is high

        def pausing():
            backend.paused().__enter__()
            return product_dtype(setting)

        assert in_thread(pausing) is high
        assert product_dtype(setting) is low


@each_setting
def test_thread_that_was_there_before_computes_alike_once_entered(setting):
    go, results = threading.Event(), []
    backends = []

    def work():
        go.wait()
        with backends[0].entered():
            results.append(product_dtype(setting))
            with backends[0].entered(), backends[0].paused():
                results.append(product_dtype(setting))
        results.append(threading.current_thread().name)

    thread = threading.Thread(target=work)
    thread.start()
    with opened(setting) as backend:
        backends.append(backend)
        go.set()
        thread.join()
    assert results[:2] == [PAIRS[setting[1]].low, PAIRS[setting[1]].high] and len(results) == 3


@each_setting
def test_subclass_of_thread_with_its_own_run_sees_the_casts(setting):
    class Worker(threading.Thread):
        def run(self):
            self.dtype = product_dtype(setting)

    with opened(setting):
        worker = Worker()
        worker.start()
        worker.join()
        assert worker.dtype is PAIRS[setting[1]].low and "run" not in vars(worker)


@each_native
def test_autocast_region_of_the_user_that_is_off_stays_off(setting):
    low, high = PAIRS[setting[1]]
    linear = torch.nn.Linear(2, 2)
    with opened(setting):
        with torch.autocast("cpu", enabled=False):
            assert linear(torch.ones(2, 2)).dtype is high
        assert linear(torch.ones(2, 2)).dtype is low


@each_setting
def test_decorated_function_acts_only_while_casts_are_active(setting):
    low, high = PAIRS[setting[1]]
    x = torch.ones(2, dtype=high)
    with opened(setting) as backend:
        halved = backend.wrap(lambda x: x, "half")
        assert halved(x).dtype is low
        with backend.paused():
            assert halved(x) is x
    assert halved(x) is x
