"""Overflow diagnosis under DistributedDataParallel: only the rank that overflowed finds the module."""

import diagnosis_loops
import pytest
import torch
from helpers import ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def test_every_rank_has_findings_and_rank_0_prints():
    (first, said), (second, silent) = ranks.run(diagnosis_loops.explode_on_one)
    assert [step for step, *_ in first] == [step for step, *_ in second] == [1]
    assert "In the forward pass inf came first from module 1" in second[0][1]
    assert "The loss was finite" in first[0][1]
    assert "It may come from another rank, through the all-reduce." in first[0][1]
    assert "ampcompat: step 1" in said and silent == ""
