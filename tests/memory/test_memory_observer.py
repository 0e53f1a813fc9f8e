"""``MemoryObserver``: which steps are measured, and what is kept of them."""

import torch
from helpers import loops, networks, precision

import ampcompat
from ampcompat import amp
from ampcompat.observers.memory.memory_observer import MemoryObserver
from ampcompat.support.containers import BYTES
from ampcompat.support.observer_interface import Observer


class StepCounter(Observer):
    """Begins a step when the optimizer has stepped, as a recorder does; it comes after the memory observer."""

    def __init__(self, observer):
        self.observer = observer
        self.count = 0
        self.observer.begin_step(0)

    def after_step(self, adapter):
        self.count += 1
        self.observer.begin_step(self.count)


def train(level, observer, widths, **options):
    """Train for a step per width, on batches of so many rows."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ampcompat.session(level, observers=[observer, StepCounter(observer)], verbosity=0):
        model, optimizer = amp.initialize(model, optimizer, **options)
        for width in widths:
            optimizer.zero_grad()
            loops.step(model(torch.ones(width, 4, dtype=precision.HIGH)).sum(), optimizer)


def test_the_first_steps_and_every_nth_are_measured(level):
    observer = MemoryObserver(first=(1, 2), every=4)
    train(level, observer, [1] * 9)
    assert observer.measured == [1, 2, 4, 8]


def test_the_step_that_held_the_most_is_kept():
    observers = []
    for widths in ([1, 50, 1, 1], [1, 1, 1, 50], [1, 1, 1, 1]):
        observers.append(MemoryObserver(first=(1, 2, 3), every=None))
        train("O0", observers[-1], widths)
    totals = [observer.usage.at_peak.total for observer in observers]
    assert totals[0] == totals[1] >= totals[2]
    if observers[0].usage.peak_by_kind.activations is not None:
        assert totals[0] > totals[2]
        output_of_tanh = 50 * 4 * BYTES[precision.HIGH]
        assert observers[0].usage.peak_by_kind.activations == output_of_tanh


def test_before_the_first_measured_step_there_is_no_usage():
    observer = MemoryObserver(first=(3,), every=None)
    train("O0", observer, [1, 1])
    assert observer.usage is None and observer.measured == []


def test_a_session_that_ends_in_a_measured_step_keeps_what_was_measured(level):
    observer = MemoryObserver(first=(1, 2), every=None)
    train(level, observer, [1, 1])
    assert observer.measured == [1, 2]
    assert observer.usage.at_peak.parameters > 0


@networks.settings_at("O2", "O5")
def test_accumulated_gradients_are_counted_in_both_dtypes(setting):
    observer = MemoryObserver(first=(0,), every=None)
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with networks.session_of(setting) as session:
        session.observers.append(observer)
        networks.initialize(setting, model, optimizer)
        observer.begin_step(0)
        for _ in range(2):
            loops.backward(model(torch.ones(1, 8, dtype=setting.high)).sum(), optimizer)
        low, high = map(BYTES.get, setting.pair)
        optimizer.step()
        observer.begin_step(1)
        assert observer.usage.peak_by_kind.gradients in (64 * high, 64 * (low + high))
        if observer.usage.peak_by_kind.temporaries is not None:
            assert observer.usage.peak_by_kind.gradients == 64 * (low + high)
