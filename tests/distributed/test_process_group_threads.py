"""``destroy_process_group`` ends gloo's threads: one that still runs at interpreter shutdown may abort the process."""

import os
import sys

import pytest
import torch
from helpers import forked
from helpers.processes import RUN, python

from ampcompat.support.torch_compat import process_groups

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
#: Before torch 2.0 nothing keeps a group that was destroyed.
can_end = pytest.mark.skipif(
    hasattr(torch, "compile") and not process_groups.CAN_BE_FREED,
    reason="this torch can hang when it frees a process group, so ampcompat lets it live",
)

SCRIPT = """
{}
import os, sys, torch

def threads():
    return len(os.listdir("/proc/self/task"))

layer = torch.nn.Linear(2, 1)
layer(torch.ones(1, 2)).sum().backward()  # starts torch's own threads
before = threads()
torch.distributed.init_process_group("{}", init_method="file://" + sys.argv[1], rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(1))
torch.optim.SGD(layer.parameters(), lr=0.1).step()
print("more" if threads() > before else "as many")
torch.distributed.destroy_process_group()
print("more" if threads() > before else "as many")
"""
#: What is registered first is called last.
WITHOUT_DESTROY = """
import atexit, sys, torch
atexit.register(lambda: print("a group is left", torch.distributed.is_initialized()))
torch.distributed.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=0, world_size=1)
{}
"""
REDIRECTED = ("import apex.amp", ("--device", "cpu"), "nccl")
OF_APEX = ("import apex.parallel", (), "gloo")


@can_end
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system does not list a process's threads")
@pytest.mark.parametrize("imported, options, backend", [REDIRECTED, OF_APEX], ids=["redirected", "apex.parallel"])
def test_no_thread_of_gloo_outlives_its_group(tmp_path, imported, options, backend):
    # In a process of its own: the first optimizer of a process imports torch._dynamo, which imports much of torch.
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(imported, backend))
    done = python(*(RUN + options + (path, tmp_path / "meeting")))
    assert done.stdout.splitlines()[-2:] == ["more", "as many"], done.stdout + done.stderr


@pytest.mark.skipif(not process_groups.CAN_BE_FREED, reason="this torch can hang when it frees a process group")
@pytest.mark.parametrize("end", ["", "sys.exit(3)"])
def test_a_redirected_group_that_the_script_leaves_is_destroyed(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_DESTROY.format(end))
    done = forked.run(forked.command, "--device", "cpu", path, tmp_path / "meeting")
    assert "a group is left False" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("can_be_freed", [False, True])
def test_before_torch_2_8_a_group_is_neither_freed_nor_destroyed_at_exit(monkeypatch, can_be_freed):
    done = []
    monkeypatch.setattr(process_groups, "CAN_BE_FREED", can_be_freed)
    monkeypatch.setattr(process_groups.importlib, "import_module", done.append)
    monkeypatch.setattr(process_groups.atexit, "unregister", lambda function: None)
    monkeypatch.setattr(process_groups.atexit, "register", done.append)
    process_groups.import_functions_of_default_group()
    process_groups.destroy_groups_at_exit()
    expected = ["torch.distributed.nn.functional", process_groups._destroy_groups]
    assert done == (expected if can_be_freed else [])


def test_after_an_error_no_group_is_destroyed(monkeypatch):
    destroyed = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: destroyed.append(True))
    process_groups._destroy_groups()
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)  # as Python does before it ends
    process_groups._destroy_groups()
    assert destroyed == [True]
