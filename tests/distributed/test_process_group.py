"""Overflow checks over a process group: ranks with separate gradients skip the same steps and keep equal scales."""

import group_loops
import pytest
import torch
from helpers import fused_optimizers, ranks

from ampcompat import amp
from ampcompat.errors import AmpError, AmpTypeError

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

FIRST = 2.0**16
#: With torch's fused optimizers, which read the flag on the device, the overflow check must include the whole group.
FUSED = (("fused", True),) if fused_optimizers.why_not("SGD") is None else ()
CASES = [("O1", "all ranks", ()), ("O2", "all ranks", ()), ("O5", "a group", ()), ("O1", "a group", FUSED)]
ALONE = ("O2", "none", ())


@pytest.fixture(scope="module")
def outcomes():
    return ranks.run(group_loops.every_case, CASES + [ALONE])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_overflow_on_one_rank_is_skipped_on_all(outcomes, case):
    for outcome in outcomes:
        assert [skipped for _, skipped in outcome[case][0]] == [False, True, True, False, False]
        assert [scale for scale, _ in outcome[case][0]] == [FIRST, FIRST / 2, FIRST / 4, FIRST / 4, FIRST / 4]


def test_without_a_group_each_rank_is_for_itself(outcomes):
    first, second = (outcome[ALONE][0] for outcome in outcomes)
    assert [skipped for _, skipped in first] == [False, False, True, False, False]
    assert [skipped for _, skipped in second] == [False, True, False, False, False]


@pytest.mark.parametrize(
    "group, message",
    [("world", "process_group"), (3, "process_group"), ([0, 1], "process_group"), (True, "init_process_group")],
)
def test_a_group_is_true_or_a_group_and_needs_torch_distributed(group, message):
    net = torch.nn.Linear(2, 2)
    with pytest.raises(AmpError if group is True else AmpTypeError, match=message):
        amp.initialize(net, torch.optim.SGD(net.parameters(), lr=0.1), opt_level="O2", process_group=group)
    assert net.weight.dtype is torch.float32
