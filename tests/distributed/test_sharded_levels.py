"""O2, O3 and O5 under ``fully_shard``: the numbers of torch's own mixed precision, bit for bit."""

import pytest
import torch
from helpers import ranks, sharding
from helpers.pairing import pairs
from sharded_levels_loops import Case

if sharding.why_not():
    pytest.skip(sharding.why_not(), allow_module_level=True)

import sharded_levels_loops as loops

LEVELS = ["O2", "O3", "O5"]
SHARDINGS = ["nested", "whole", "hybrid"]
WEIGHTS = ["all", "tied", "frozen", "batch norm"]
WAYS = ["plain", "accumulation", "checkpointing", "stated policy"]
#: (number of ranks, case).
CASES = [(number, Case(*values)) for number, *values in pairs([2, 3, 4], LEVELS, SHARDINGS, WEIGHTS, WAYS)]
CASES.append((2, Case(way="compile")))
NO_COPIES = pytest.mark.skipif(bool(sharding.why_no_copies()), reason=str(sharding.why_no_copies()))
#: Of the largest weight, against one process: gradients are added in another order, and rounded to half before.
TOLERANCE = {"O2": 2e-3, "O3": 2e-3, "O5": 1.6e-2}


def parameters(cases):
    """Return the parameters of tests; cases with copies are skipped where there can be none."""
    marks = {"hybrid": [NO_COPIES]}
    return [pytest.param(number, case, marks=marks.get(case.sharding, ())) for number, case in cases]


@pytest.fixture(scope="module")
def outcomes():
    found, impossible = {}, {"hybrid"} if sharding.why_no_copies() else set()
    for number in sorted({number for number, _ in CASES}):
        cases = [case for each, case in CASES if each == number and case.sharding not in impossible]
        found[number] = ranks.run(loops.both_ways, cases, world_size=number)
    return found


@pytest.mark.parametrize("number, case", parameters(CASES), ids=["{} ranks {}".format(*each) for each in CASES])
def test_the_numbers_are_those_of_a_torch_loop_to_the_bit(outcomes, number, case):
    for outcome in outcomes[number]:
        (losses, skips, scale, weights), by_hand = outcome[str(case)]
        assert torch.equal(losses, by_hand[0])
        assert (skips, scale) == by_hand[1:3]
        assert all(torch.equal(value, by_hand[3][name]) for name, value in weights.items())
        assert {value.dtype for value in weights.values()} <= {torch.float32, torch.int64}


@pytest.mark.parametrize(
    "number, case",
    parameters(each for each in CASES if each[1].weights != "batch norm"),  # which has statistics of its own rank
    ids=str,
)
def test_the_weights_are_those_of_one_process_within_rounding(outcomes, number, case, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "off")
    _, expected_skips, _, expected = loops.one_process(case, number)
    for outcome in outcomes[number]:
        _, skips, _, weights = outcome[str(case)][0]
        assert skips == expected_skips
        for name, value in weights.items():
            assert (value - expected[name]).abs().max() <= TOLERANCE[case.level] * expected[name].abs().max()
