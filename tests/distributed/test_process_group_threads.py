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
if hasattr(torch, "compile") and not hasattr(torch.distributed.ProcessGroup, "shutdown"):
    pytest.skip("this torch can hang when it frees a process group, so ampcompat lets it live", allow_module_level=True)

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


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system does not list a process's threads")
@pytest.mark.parametrize("imported, options, backend", [REDIRECTED, OF_APEX], ids=["redirected", "apex.parallel"])
def test_no_thread_of_gloo_outlives_its_group(tmp_path, imported, options, backend):
    # In a process of its own: the first optimizer of a process imports torch._dynamo, which imports much of torch.
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(imported, backend))
    done = python(*(RUN + options + (path, tmp_path / "meeting")))
    assert done.stdout.splitlines()[-2:] == ["more", "as many"], done.stdout + done.stderr


@pytest.mark.skipif(
    not hasattr(torch.distributed.ProcessGroup, "shutdown"), reason="this torch does not end its threads"
)
@pytest.mark.parametrize("end", ["", "sys.exit(3)"])
def test_a_redirected_group_that_the_script_leaves_is_destroyed(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_DESTROY.format(end))
    done = forked.run(forked.command, "--device", "cpu", path, tmp_path / "meeting")
    assert "a group is left False" in done.stdout, done.stdout + done.stderr


def test_after_an_error_no_group_is_destroyed(monkeypatch):
    destroyed = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: destroyed.append(True))
    process_groups._destroy_groups()
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)  # as Python does before it ends
    process_groups._destroy_groups()
    assert destroyed == [True]
