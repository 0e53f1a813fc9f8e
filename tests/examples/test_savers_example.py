"""The example of the memory savers, from the command line."""

import os
import re

import pytest
from helpers import forked
from helpers.processes import ROOT

from ampcompat.support.torch_compat import features

if not features.is_version_within(oldest="1.11"):
    pytest.skip("this torch has reentrant checkpoints only, and the example needs the others", allow_module_level=True)


@pytest.mark.parametrize("launcher", [(), ("--standalone", "--nproc_per_node", "2", "-m", "ampcompat", "run")], ids=len)
def test_the_digits_are_learnt_with_little_memory(launcher):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    script = os.path.join(ROOT, "examples", "memory_savers.py")
    options = ("--opt-level", "O2", "--accumulate", "4", "--checkpoint", "--epochs", "3")
    done = forked.run(forked.torchrun if launcher else forked.command, *launcher, script, *options)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    losses = [float(found) for found in re.findall(r"loss ([0-9.]+|nan|inf)", printed)]
    assert len(losses) == 3 and losses[-1] < 0.3 * losses[0]
    assert float(re.search(r"test accuracy: ([0-9.]+)", printed).group(1)) >= 90.0
