"""``WrittenMemory`` notes every way to write a tensor that moves no version counter, and nothing else."""

import gc
import threading

import numpy
import pytest
import torch
from helpers.threads import in_threads

from ampcompat.support import tensor_lists
from ampcompat.support.patching import PatchStack
from ampcompat.support.unversioned_writes import WrittenMemory


@pytest.fixture
def patches():
    with PatchStack() as patches:
        yield patches


@pytest.fixture
def written(patches):
    written = WrittenMemory()
    written.open(patches)
    return written


@pytest.fixture
def param(written):
    param = torch.nn.Parameter(torch.ones(2, 3))
    written.watch([param])
    assert param not in written and not written.noted
    return param


def by_data(param):
    param.data.fill_(2)


def by_data_of_a_view(param):
    param.detach()[0].data.fill_(2)


def by_numpy(param):
    param.detach().numpy()[...] = 2


def by_numpy_of_a_view(param):
    numpy.asarray(param.detach().view(-1))[1:] = 2


def by_assigning(param):
    param.data = torch.full((2, 3), 2.0)


def by_assigning_a_slice(param):
    flat = torch.zeros(12)
    param.data = flat[6:].view(2, 3)
    flat.fill_(2)


@pytest.mark.parametrize(
    "write", [by_data, by_data_of_a_view, by_numpy, by_numpy_of_a_view, by_assigning, by_assigning_a_slice]
)
def test_a_write_that_moves_no_version_counter_is_noted_until_it_is_cleared(written, param, write):
    version = param._version
    write(param)
    assert param._version == version
    assert written.noted and param in written
    written.clear([param])
    assert param not in written and not written.noted


class Weight(torch.nn.Parameter):
    """Of such a tensor no memory is known: it may be a wrapper, as those of ``fully_shard``."""


def the_assigned_value(param):
    param.data = value = type(param)(torch.ones(2, 3))
    return value


@pytest.mark.parametrize(
    "kind, alias_of",
    [
        (torch.nn.Parameter, lambda param: param.data),
        (torch.nn.Parameter, lambda param: param.detach().numpy()),
        (Weight, lambda param: param.data),
        (Weight, the_assigned_value),
    ],
)
def test_an_alias_counts_as_long_as_it_lives(written, kind, alias_of):
    param = kind(torch.ones(2, 3))
    written.watch([param])
    alias = alias_of(param)
    written.clear([param])
    assert param in written
    del alias
    written.clear([param])
    assert param not in written


def test_an_alias_counts_from_before_and_after_the_memory_has_moved(written, param):
    kept = [param.data]
    param.share_memory_()
    for _ in range(2):
        written.clear([param])
        assert param in written
        kept = [param.data]
    del kept
    written.clear([param])
    assert param not in written


@pytest.mark.skipif(not hasattr(torch.utils, "swap_tensors"), reason="torch 2.2 and older swap no tensors")
def test_an_alias_that_got_another_tensor_is_none(written, param):
    alias = param.data
    torch.utils.swap_tensors(alias, torch.zeros(2, 3))
    written.clear([param])
    assert param not in written


def test_an_alias_from_before_the_tensor_was_watched_counts(written):
    param = torch.nn.Parameter(torch.ones(2))
    array = param.detach().numpy()
    written.watch([param])
    assert param in written and array.tolist() == [1.0, 1.0]


def test_a_tensor_is_followed_to_its_new_memory(written, param):
    flat = torch.zeros(6)
    param.data = flat.view(2, 3)
    written.clear([param])
    assert param in written  # ``flat`` lives
    del flat
    written.clear([param])
    param.detach().numpy()[...] = 2
    assert param in written


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_under_a_function_mode_scripts_are_noted_and_what_ampcompat_reads_is_not(written, param):
    with torch.device("cpu"):
        tensor_lists.data_of(param)
        tensor_lists.set_data(param, torch.zeros(2, 3))
        assert param not in written
        param.data.fill_(2.0)
        assert param in written


def test_writes_of_a_paused_thread_are_not_noted(written, param):
    other = torch.nn.Parameter(torch.ones(2))
    written.watch([other])
    with written.paused:
        param.data.fill_(2)
        param.data = torch.zeros(2, 3)
        with written.resumed:
            by_numpy(other)
        thread = threading.Thread(target=by_numpy, args=(param,))
        assert param not in written and other in written
        thread.start()
        thread.join()
    assert param in written


def test_tensors_that_died_leave_no_notes(written, param):
    alias = torch.nn.Parameter(torch.ones(2))
    written.watch([alias])
    kept = alias.data
    assert written.noted
    del alias
    gc.collect()
    assert not written.noted and kept.tolist() == [1.0, 1.0]


def test_threads_that_write_and_clear_lose_no_alias(written):
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(50)]
    written.watch(params)
    kept = []

    def work():
        for _ in range(20):
            for param in params:
                kept.append(param.data)
                written.clear([param])
                assert param in written

    assert in_threads(work) == []
    del kept[:]
    written.clear(params)
    assert not written.noted


def test_a_tensor_whose_memory_was_freed_is_not_written_by_what_has_that_memory_now(written):
    """Masters are stored between steps: the memory that their values had may then be that of a gradient."""
    memory = torch.zeros(4)
    watched = memory.view(4)
    written.watch([watched])
    written.leave_memory([watched])
    alias = memory.data
    assert watched not in written
    written.watch([watched])
    assert watched in written  # by the alias, which lives
    del alias
    written.clear([watched])
    assert watched not in written
