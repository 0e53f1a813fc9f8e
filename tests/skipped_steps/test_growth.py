"""What led up to a skipped step is shown, and growth towards the end of the range is told before it, once."""

import math
import random

import pytest
import torch
from helpers import loops, precision
from hypothesis import given, settings
from hypothesis import strategies as st

import ampcompat
from ampcompat import amp
from ampcompat.trace.skipped_steps import recent_maxima
from ampcompat.trace.skipped_steps.diagnosis import OverflowDiagnosis
from ampcompat.trace.skipped_steps.pass_record import PassRecord
from ampcompat.trace.skipped_steps.recent_maxima import WINDOW, passes_to_overflow
from ampcompat.trace.skipped_steps.skip_messages import keep_layers
from ampcompat.trace.values import NamedScalars

LIMIT = torch.finfo(precision.LOW).max


class Net(torch.nn.Module):
    """A layer between two others that returns half of ``factor(step)``."""

    def __init__(self, factor):
        super().__init__()
        self.first, self.grows, self.last = torch.nn.Linear(4, 4), Growing(factor), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.grows(torch.tanh(self.first(x))))


class Growing(torch.nn.Module):
    """Returns half of a number that depends on the step."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.step = factor, 0

    def forward(self, x):
        self.step += 1
        return (x * 0 + 1.0) * (0.5 * self.factor(self.step - 1))


def train(factor, level="O2", steps=24, loss=lambda output: torch.tanh(output.float() * 0).mean(), **options):
    """Train with a diagnosis; return it."""
    diagnosis = OverflowDiagnosis(prints=False)
    net = Net(factor)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with ampcompat.session(level, observers=[diagnosis], verbosity=0):
        amp.initialize(net, optimizer, **dict({"init_scale": 8.0}, **options))
        for _ in range(steps):
            optimizer.zero_grad()
            loops.step(loss(net(torch.ones(2, 4))), optimizer)
    return diagnosis


def doubling(start):
    """Return a factor that doubles, half of which reaches ``LIMIT`` after ``start`` + 1 steps."""
    return lambda step: LIMIT * 2.0 ** (step - start)


@pytest.mark.parametrize("level", ("O1", "O2", "O3"))
def test_a_value_that_grows_is_told_once_before_it_overflows_with_its_name(level):
    diagnosis = train(doubling(17), level)
    ((step, text),) = diagnosis.warnings
    first = min(step for step, *_ in diagnosis.findings) if diagnosis.findings else 18
    assert 11 <= step < first
    assert "the largest absolute value of the output of grows has grown 128-fold in 8 passes" in text
    assert f"in about {18 - step} pass" in text
    assert ("No opt level" if precision.IS_STAND_IN else keep_layers()) in text


@pytest.mark.parametrize(
    "factor",
    [
        lambda step: LIMIT,  # half of the range, always
        lambda step: LIMIT * (1 - 2.0**-step),  # it levels off
        lambda step: LIMIT * (1.0, 0.3)[step % 2],
        lambda step: 2.0**-20 * 2.0**step,  # far from the range
        lambda step: LIMIT * random.Random(step).uniform(0.1, 1.5),
    ],
)
def test_values_that_do_not_grow_towards_the_range_are_not_told(factor):
    assert train(factor).warnings == []


def test_a_second_value_is_not_told_and_a_later_session_begins_anew():
    diagnosis = OverflowDiagnosis(prints=False)
    for _ in range(2):
        net = Net(doubling(17))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with ampcompat.session("O2", observers=[diagnosis], verbosity=0):
            amp.initialize(net, optimizer)
            for _ in range(16):
                loops.step(net(torch.ones(2, 4)).float().mean() * 1e-6, optimizer)
                optimizer.zero_grad()
    assert len(diagnosis.warnings) == 2


def test_a_static_scale_makes_growing_gradients_overflow_and_a_dynamic_one_follows_them():
    def loss_of(steps):
        return lambda output: (output.float() - output.float().detach()).mean() * 2.0 ** (next(steps) - 14) * LIMIT / 64

    static = train(lambda step: 1.0, loss=loss_of(iter(range(99))), loss_scale=64.0)
    ((_, text),) = static.warnings
    assert "gradient" in text and "at the loss scale" in text and 'loss_scale="dynamic"' in text
    assert train(lambda step: 1.0, loss=loss_of(iter(range(99))), loss_scale="dynamic").warnings == []


def test_the_explanation_of_a_skipped_step_shows_what_grew_before():
    diagnosis = train(
        lambda step: LIMIT * 2.0 ** (step - 9), steps=14, loss=lambda output: output.float().mean() * 1e-9
    )
    _, text, _ = diagnosis.findings[0]
    shown = text.partition("Largest absolute values in the passes before: ")[2].partition(" What to try")[0]
    assert shown.startswith("output of grows ") and "128-fold in 8 passes" in text
    values = [float(value) for value in shown[len("output of grows ") :].partition(" (")[0].split(", ")]
    assert values == pytest.approx([LIMIT * 2.0 ** (step - 10) for step in range(5, 11)], rel=5e-3)
    assert "What to try" in text.partition("128-fold")[2]
    _, repeated, _ = diagnosis.findings[-1]
    assert len(diagnosis.findings) > 1 and "Largest absolute values" not in repeated


def test_a_step_skipped_at_the_start_has_no_history():
    diagnosis = train(lambda step: math.inf if step == 0 else 1.0, steps=2, loss=lambda output: output.float().mean())
    assert "Largest absolute values" not in diagnosis.findings[0][1]


@pytest.mark.parametrize(
    "values, expected",
    [
        ([2.0**n for n in range(8)], 1),  # the next is 256
        ([1.0] * 8, None),
        ([8.0 * 1.1**n for n in range(8)], None),  # 17 passes
        ([16.0 * 1.2**n for n in range(8)], 7),
        ([2.0**n for n in range(6)] + [2.0**4, 2.0**6.5], 2),  # one fall
        ([2.0**n for n in (0, 2, 1, 3, 5, 4, 6, 7)], None),  # two
        ([2.0**n for n in range(7)], None),  # too few
        ([0.0] + [2.0**n for n in range(7)], None),
        ([2.0 ** (7 - 2.0**-n) for n in range(8)], None),  # it levels off under the limit
    ],
)
def test_the_rule_by_hand(values, expected):
    assert passes_to_overflow(values, 2.0**7.9 if expected == 1 else 200.0) == expected


def test_numbers_in_random_order_are_seldom_growth():
    generator = random.Random(0)
    found = sum(
        passes_to_overflow([generator.uniform(1.0, 2.0) for _ in range(WINDOW)], 2.01) is not None for _ in range(20000)
    )
    assert found / 20000 < 0.001


def record_of(step, named, loss_id=0):
    """Return a ``PassRecord`` with these outputs, in float16."""
    record = PassRecord(step, step, loss_id, torch.tensor(4.0), None, NamedScalars(()), NamedScalars(()))
    return record._replace(outputs=NamedScalars(named), output_dtypes=[torch.float16] * len(named))


def test_four_new_maxima_are_looked_at_though_explanations_read_them_before():
    recent = recent_maxima.RecentMaxima()
    found = []
    for step in range(8):
        found.append(recent.add(record_of(step, [("a", torch.tensor(1.0))])))
        if step % 2:
            recent.of_loss(0)  # as an explanation of a skipped step does
    assert sum(found) == 1 and not any(found[:4])


def test_maxima_of_a_pass_take_the_largest_of_a_name_and_leave_out_inf():
    recent = recent_maxima.RecentMaxima()
    named = [("a", torch.tensor(3.0)), ("b", torch.tensor(math.inf)), ("a", torch.tensor(2.0))]
    for step in range(3):
        assert not recent.add(record_of(step, named))
    assert [each.values for each in recent.of_loss(0)] == [{("outputs", "a"): 3.0}] * 3
    assert {each.scale for each in recent.of_loss(0)} == {4.0}
    assert [growth.values for growth in recent.growths(0, before=2, count=5)] == [(3.0, 3.0)]


names = st.sampled_from("abcde")
numbers = st.floats(width=32).map(abs)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.lists(st.tuples(names, numbers), max_size=8)), max_size=12))
def test_the_largest_finite_values_before_a_pass_are_those_of_all_losses(passes):
    recent, expected = recent_maxima.RecentMaxima(), [{}]
    for step, (loss_id, values) in enumerate(passes):
        recent.add(record_of(step, [(name, torch.tensor(value)) for name, value in values], loss_id))
        known = dict(expected[-1])
        for name, value in values:
            if math.isfinite(value):
                known[name] = max(known.get(name, 0.0), value)
        expected.append(known)
    for step, known in enumerate(expected):
        largest = recent.largest_before(step)
        assert {name: largest("outputs", name) for name in "abcde"} == {name: known.get(name) for name in "abcde"}


def test_the_largest_values_of_passes_that_are_no_longer_kept_count():
    recent = recent_maxima.RecentMaxima()
    for step in range(2 * recent_maxima.KEPT):
        recent.add(record_of(step, [("a", torch.tensor(9.0 if step == 1 else 1.0)), (f"b{step}", torch.tensor(0.0))]))
    largest = recent.largest_before(2 * recent_maxima.KEPT - 3)
    assert (largest("outputs", "a"), largest("outputs", "b1"), largest("outputs", "c")) == (9.0, 0.0, None)
    assert largest("outputs", f"b{2 * recent_maxima.KEPT - 3}") is None
