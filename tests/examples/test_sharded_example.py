"""``examples/sharded.py`` under torchrun, one of whose processes is killed."""

import os
import re
import sys

import pytest
from helpers import forked, ranks, sharding
from helpers.processes import ROOT, environment

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

SMALL = ["--steps", "7", "--every", "3", "--layers", "1", "--width", "16", "--checkpoint"]


def losses(printed):
    """Return the set of "step … loss …" lines."""
    return set(re.findall(r"step \d+ loss \S+", printed))


#: Runs a script, whose rank 1 is killed in its fifth step unless torchrun has restarted it.
KILLED_ONCE = """
import os, runpy, signal, sys
import torch

steps, clip = [], torch.nn.utils.clip_grad_norm_

def clip_and_be_killed(*args, **kwargs):
    steps.append(args)
    if len(steps) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return clip(*args, **kwargs)

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    torch.nn.utils.clip_grad_norm_ = clip_and_be_killed
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_torchrun_restarts_it_and_it_ends_where_an_undisturbed_run_ends(tmp_path):
    (tmp_path / "killed_once.py").write_text(KILLED_ONCE)
    torchrun = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    script = ["-m", "ampcompat", "run", tmp_path / "killed_once.py", os.path.join(ROOT, "examples", "sharded.py")]
    settings = environment(GLOO_SOCKET_IFNAME="lo", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    done = forked.run(forked.torchrun, *(torchrun + script + SMALL + [tmp_path / "killed"]), env=settings)
    printed = done.stdout
    assert done.returncode == 0, done.stderr
    assert printed.count("after step 0") == printed.count("after step 3") == 2
    sys.path.insert(0, os.path.join(ROOT, "tests", "distributed"))
    import sharded_checkpoint_loops as loops

    expected = ranks.run(loops.undisturbed, SMALL + [str(tmp_path / "undisturbed")])[0]
    assert losses(printed) == losses(expected) and len(losses(expected)) == 7
