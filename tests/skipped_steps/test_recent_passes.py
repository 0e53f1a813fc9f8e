"""The largest values of the passes before a skipped step, with which it is explained."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompat.observers.skipped_steps.pass_record import KEPT, PassRecord, RecentPasses
from ampcompat.observers.values import NamedScalars


def record_of(number, named, loss_id=0):
    """Return a ``PassRecord`` with these outputs, in float16."""
    record = PassRecord(number, number, loss_id, torch.tensor(4.0), None, NamedScalars(()), NamedScalars(()))
    return record._replace(outputs=NamedScalars(named), output_dtypes=[torch.float16] * len(named))


names = st.sampled_from("abcde")
numbers = st.floats(width=32).map(abs)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.lists(st.tuples(names, numbers), max_size=8)), max_size=12))
def test_the_largest_finite_values_before_a_pass_are_those_of_all_losses(passes):
    recent, expected = RecentPasses(), [{}]
    for number, (loss_id, values) in enumerate(passes):
        recent.add(record_of(number, [(name, torch.tensor(value)) for name, value in values], loss_id))
        known = dict(expected[-1])
        for name, value in values:
            if math.isfinite(value):
                known[name] = max(known.get(name, 0.0), value)
        expected.append(known)
    for number, known in enumerate(expected):
        largest = recent.largest_before(number)
        assert {name: largest("outputs", name) for name in "abcde"} == {name: known.get(name) for name in "abcde"}


def test_values_of_passes_long_ago_do_not_count():
    recent = RecentPasses()
    for number in range(KEPT + 1):
        recent.add(record_of(number, [("a", torch.tensor(9.0 if number == 0 else 1.0))]))
    assert recent.count == KEPT + 1
    assert recent.largest_before(KEPT + 1)("outputs", "a") == 1.0
