"""Which steps of a session are measured, and what is kept of them."""

import torch

import ampcompat
import networks
import precision
from ampcompat import amp
from ampcompat.abtest import Memory
from ampcompat.parts.storages import element_size
from ampcompat.runtime.memory_watch import MemoryWatch
from ampcompat.runtime.observers import Observer


class Clock(Observer):
    """Says that a step begins when the optimizer has stepped, as a recorder does; it comes after the watch."""

    def __init__(self, watch):
        self.watch = watch
        self.count = 0
        self.watch.begin_step(0)

    def after_step(self, adapter):
        self.count += 1
        self.watch.begin_step(self.count)


def train(level, watch, widths, **options):
    """Train for a step per width, on batches of so many rows."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ampcompat.session(level, observers=[watch, Clock(watch)], verbosity=0):
        model, optimizer = amp.initialize(model, optimizer, **options)
        for width in widths:
            optimizer.zero_grad()
            with amp.scale_loss(model(torch.ones(width, 4, dtype=precision.HIGH)).sum(), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()


def test_the_first_steps_and_every_so_manieth_are_measured(level):
    watch = MemoryWatch(first=(1, 2), every=4)
    train(level, watch, [1] * 9)
    assert watch.measured == [1, 2, 4, 8]


def test_the_greatest_step_is_kept():
    watches = []
    for widths in ([1, 50, 1, 1], [1, 1, 1, 50], [1, 1, 1, 1]):
        watches.append(MemoryWatch(first=(1, 2, 3), every=None))
        train("O0", watches[-1], widths)
    totals = [watch.reading.at_peak.total for watch in watches]
    assert totals[0] == totals[1] >= totals[2]
    if watches[0].reading.most.activations is not None:
        assert totals[0] > totals[2]
        assert watches[0].reading.most.activations == 50 * 4 * element_size(precision.HIGH)  # the output of Tanh


def test_a_watch_before_its_first_step_has_no_reading():
    watch = MemoryWatch(first=(3,), every=None)
    train("O0", watch, [1, 1])
    assert watch.reading is None and watch.measured == []


def test_a_session_that_ends_in_a_measured_step_keeps_what_was_measured(level):
    watch = MemoryWatch(first=(1, 2), every=None)
    train(level, watch, [1, 1])
    assert watch.measured == [1, 2]
    assert watch.reading.at_peak.parameters > 0


def test_a_reading_fits_the_record_of_a_run(level):
    watch = MemoryWatch(first=(1,), every=None)
    train(level, watch, [1, 1])
    memory = Memory(**watch.reading.record())
    assert memory.peak_total == watch.reading.at_peak.total
    assert memory.cuda_allocated is None and memory.fragmentation is None
    kinds = [memory.parameters, memory.gradients, memory.masters, memory.optimizer, memory.activations, memory.buffers]
    assert memory.peak_total == sum(kind for kind in kinds if kind is not None)


def test_the_prediction_stands_beside_what_was_measured(level):
    watch = MemoryWatch(first=(1,), every=None)
    train(level, watch, [1, 1])
    predicted = Memory(**watch.predicted.record())
    assert predicted.parameters == watch.reading.most.parameters
    assert predicted.optimizer == watch.reading.most.optimizer
    assert predicted.activations is None
    assert all(sentence.endswith(".") for sentence in watch.explanations())


@networks.settings_at("O2", "O5")
def test_gradients_that_accumulate_are_seen_in_both_widths(setting):
    watch = MemoryWatch(first=(0,), every=None)
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with networks.session_of(setting) as session:
        session.observers.append(watch)
        networks.initialize(setting, model, optimizer)
        watch.begin_step(0)
        for _ in range(2):
            with amp.scale_loss(model(torch.ones(1, 8, dtype=setting.high)).sum(), optimizer) as scaled_loss:
                scaled_loss.backward()
        low, high = map(element_size, setting.pair)
        optimizer.step()
        watch.begin_step(1)
        assert watch.reading.most.gradients in (64 * high, 64 * (low + high))
        if watch.reading.most.temporaries is not None:
            assert watch.reading.most.gradients == 64 * (low + high)
