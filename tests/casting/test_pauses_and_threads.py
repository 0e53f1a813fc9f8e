"""Casts reach every thread; pauses belong to one."""

import concurrent.futures
import contextlib

import pytest
import torch
import torch.nn.functional as F
from helpers.snapshots import autocast_flags, snapshot
from helpers.threads import in_thread
from opened import PAIRS, call_checkpoint, each_native, each_setting, forward, opened

from ampcompat.engine.casting import BACKENDS
from ampcompat.support.patching import PatchStack


def product_dtype(setting):
    a = torch.ones(2, 2, dtype=setting.high)
    return F.linear(a, a).dtype


@each_setting
def test_one_pause_can_be_entered_again_within_itself(setting):
    with opened(setting) as backend:
        pause = backend.paused()
        with pause:
            with pause:
                assert product_dtype(setting) is setting.high
            assert product_dtype(setting) is setting.high
        assert product_dtype(setting) is setting.low and backend.active()


@each_setting
def test_pauses_that_do_not_nest_end_with_the_last(setting):

    def pausing():
        with backend.paused():
            yield

    with opened(setting) as backend:
        suspended = pausing()
        next(suspended)
        with backend.paused():
            suspended.close()
            assert product_dtype(setting) is setting.high
        assert product_dtype(setting) is setting.low and backend.active()


@each_setting
def test_a_pause_that_outlives_its_backend_leaves_no_casts_behind(setting):
    before = snapshot()
    with contextlib.ExitStack() as outliving:
        with opened(setting) as backend:
            outliving.enter_context(backend.paused())
    assert product_dtype(setting) is setting.high
    assert snapshot() == before


@each_setting
def test_pause_of_one_thread_does_not_reach_another(setting):
    with opened(setting) as backend:
        with backend.paused():
            assert in_thread(lambda: product_dtype(setting)) is setting.low
            assert product_dtype(setting) is setting.high

        def pausing():
            backend.paused().__enter__()
            return product_dtype(setting)

        assert in_thread(pausing) is setting.high
        assert product_dtype(setting) is setting.low


@each_native
def test_autocast_region_of_the_user_that_is_off_stays_off_in_every_thread(setting):
    def within(enabled):
        with torch.autocast("cpu", dtype=setting.low, enabled=enabled):
            return product_dtype(setting)

    with opened(setting):
        assert within(False) is in_thread(lambda: within(False)) is setting.high
        assert within(True) is product_dtype(setting) is setting.low
        assert in_thread(lambda: within(True)) is in_thread(lambda: product_dtype(setting)) is setting.low
        assert in_thread(lambda: (within(False), product_dtype(setting))[1]) is setting.low


@each_setting
def test_decorated_function_acts_only_while_casts_are_active(setting):
    x = torch.ones(2, dtype=setting.high)
    with opened(setting) as backend:
        halved = backend.wrap(lambda x: x, "half")
        assert halved(x).dtype is setting.low
        with backend.paused():
            assert halved(x) is x
    assert halved(x) is x


#: One call per kind of row, among them some that autocast covers on the CPU, and the dtype that comes out.
ROWS = {
    "linear": (lambda wide, low: F.linear(wide, wide), "low"),
    "method": (lambda wide, low: wide.matmul(wide), "low"),
    "operator": (lambda wide, low: wide @ low, "low"),
    "exp": (lambda wide, low: torch.exp(low), "high"),
    "mse_loss": (lambda wide, low: F.mse_loss(low, low), "high"),
    "cross_entropy": (lambda wide, low: F.cross_entropy(low, torch.tensor([0, 1])), "high"),
    "prod": (lambda wide, low: low.prod(), "high"),
    "add": (lambda wide, low: low + wide, "high"),
    "cat": (lambda wide, low: torch.cat([low, wide]), "high"),
}


def rows_alike(setting):
    """Return the names of the rows that are not cast as in the table, in this thread."""
    pair = PAIRS[setting[1]]
    wide = torch.ones(2, 2, dtype=pair.high)
    low = wide.to(pair.low)
    return [name for name, (call, dtype) in ROWS.items() if call(wide, low).dtype is not getattr(pair, dtype)]


@each_setting
def test_threads_cast_alike_whenever_they_began_and_keep_no_flag(setting):
    with concurrent.futures.ThreadPoolExecutor(1) as older, concurrent.futures.ThreadPoolExecutor(1) as younger:
        before = older.submit(autocast_flags).result()
        with opened(setting) as backend:

            def rows_alike_entered():
                with forward(backend):
                    return rows_alike(setting)

            def paused():
                with backend.paused(), forward(backend):
                    outside = product_dtype(setting)
                with forward(backend), forward(backend), backend.paused():
                    return {outside, product_dtype(setting)}

            for pool in (older, younger):
                assert pool.submit(rows_alike, setting).result() == []
                assert pool.submit(rows_alike_entered).result() == []
                assert pool.submit(rows_alike, setting).result() == [] and pool.submit(backend.active).result()
                assert pool.submit(paused).result() == {setting.high}
        for pool in (older, younger):
            assert pool.submit(autocast_flags).result() == before
            assert pool.submit(product_dtype, setting).result() is setting.high


@each_setting
def test_backend_opened_and_undone_in_other_threads_leaves_no_flag(setting):
    patches = PatchStack()
    backend = BACKENDS[setting[0]](PAIRS[setting[1]])
    with concurrent.futures.ThreadPoolExecutor(1) as opening:
        before = opening.submit(autocast_flags).result()
        opening.submit(backend.open, patches).result()
        assert opening.submit(rows_alike, setting).result() == [] and rows_alike(setting) == []
        patches.undo()
        assert opening.submit(autocast_flags).result() == before
    assert product_dtype(setting) is setting.high


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda':UserWarning")  # torch 1.12 on a CPU
@each_setting
def test_checkpoint_recomputes_alike_in_another_thread(setting):
    seen = []

    def layer(x):
        seen.append(product_dtype(setting))
        return torch.mm(x, x).exp()

    def work():
        x = torch.ones(2, 2, dtype=setting.high, requires_grad=True)
        call_checkpoint(layer, True, x).sum().backward()

    with opened(setting):
        in_thread(work)
    assert seen == [setting.low, setting.low]
