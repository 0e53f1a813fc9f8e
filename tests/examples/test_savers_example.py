"""The example of the memory savers, from the command line."""

import os
import re

import pytest
from helpers.processes import ROOT, run_in_process

from ampcompat.support.torch_compat import features

if not features.is_version_within(oldest="1.11"):
    pytest.skip("this torch has reentrant checkpoints only, and the example needs the others", allow_module_level=True)


# torch 1.12 and 1.13 enter CUDA's autocast when they recompute a checkpoint.
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda', but CUDA is not available")
def test_the_digits_are_learnt_with_little_memory(monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    script = os.path.join(ROOT, "examples", "memory_savers.py")
    options = ("--opt-level", "O2", "--accumulate", "4", "--checkpoint", "--epochs", "3")
    run_in_process(monkeypatch, script, *options)
    printed = capsys.readouterr().out
    losses = [float(found) for found in re.findall(r"loss ([0-9.]+|nan|inf)", printed)]
    assert len(losses) == 3 and losses[-1] < 0.3 * losses[0]
    assert float(re.search(r"test accuracy: ([0-9.]+)", printed).group(1)) >= 90.0
