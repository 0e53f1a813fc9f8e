"""The dtypes in which two ranks add up gradients, whoever does it."""

import pytest
from helpers import ranks

from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(
    not features.is_version_within(oldest="2.6"), reason="fully_shard is public from 2.6 on"
)

CASES = [
    ("ddp", "float32", {"float32": ["DistributedDataParallel"]}),
    ("ddp", "bfloat16", {"bfloat16": ["DistributedDataParallel"]}),
    ("compressed", "float16", {"float16": ["all_reduce"]}),
    ("compressed", "bfloat16", {"bfloat16": ["all_reduce"]}),
    ("compressed_in_cpp", "float16", {"float16": ["DistributedDataParallel"]}),
    ("by_hand", "float32", {"float32": ["all_reduce"]}),
    ("by_hand", "bfloat16", {"bfloat16": ["all_reduce"]}),
    ("sharded", "float32", {"float32": ["reduce_scatter"]}),
    ("sharded", "bfloat16", {"bfloat16": ["reduce_scatter"]}),
]


@pytest.mark.parametrize("kind, dtype, expected", CASES, ids=[f"{kind} {dtype}" for kind, dtype, _ in CASES])
def test_sums_of_two_ranks_have_their_dtype_and_a_note_if_it_is_half(kind, dtype, expected):
    import ranks_loops

    for sums, found in ranks.run(ranks_loops.audited, kind, dtype):
        assert sums == expected
        assert ("half_reduction" in found) == (dtype != "float32")


@pytest.mark.parametrize("dtype, expected", [("float16", ["no_scaler"]), ("bfloat16", [])])
def test_gradients_that_ranks_average_in_float32_are_those_that_float16_has_computed(dtype, expected):
    import ranks_loops

    assert [found for _, found in ranks.run(ranks_loops.audited, "unscaled", dtype)] == [expected] * 2
