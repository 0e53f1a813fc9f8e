"""``examples/sharded.py`` under torchrun, one of whose processes is killed."""

import os
import re
import signal
import subprocess
import sys

import pytest
import ranks
from processes import ROOT, environment

try:
    from torch.distributed.fsdp import fully_shard  # noqa: F401
except ImportError:
    pytest.skip("this torch has no torch.distributed.fsdp.fully_shard", allow_module_level=True)

SMALL = ["--steps", "7", "--every", "3", "--layers", "1", "--width", "16", "--checkpoint"]


def losses(printed):
    """Return the set of "step … loss …" lines."""
    return set(re.findall(r"step \d+ loss \S+", printed))


def killed_once(command, at_step):
    """Run a command, kill rank 1 at a step of the first run; return the exit status and what it prints."""
    settings = environment(GLOO_SOCKET_IFNAME="lo", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": settings, "text": True}
    printed, is_killed = [], False
    with subprocess.Popen(command, **options) as running:
        for line in running.stdout:
            printed.append(line)
            found = re.search(r"rank 1 is process (\d+)", "".join(printed))
            if not is_killed and found and line.startswith("step {} ".format(at_step)):
                os.kill(int(found.group(1)), signal.SIGKILL)
                is_killed = True
    return running.returncode, "".join(printed)


def test_torchrun_restarts_it_and_it_ends_where_an_undisturbed_run_ends(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ["-m", "ampcompat", "run", os.path.join(ROOT, "examples", "sharded.py")]
    status, printed = killed_once(
        torchrun + ["--max-restarts", "3"] + script + SMALL + [str(tmp_path / "killed")], at_step=4
    )
    assert status == 0, printed
    assert printed.count("after step 0") == 2 and re.search(r"after step [36]", printed)
    sys.path.insert(0, os.path.join(ROOT, "tests", "distributed"))
    import sharded_checkpoint_loops as loops

    expected = ranks.run(loops.undisturbed, SMALL + [str(tmp_path / "undisturbed")])[0]
    assert losses(printed) == losses(expected) and len(losses(expected)) == 7
