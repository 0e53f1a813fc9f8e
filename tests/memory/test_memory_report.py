"""The public function ``memory_report``."""

import pytest
import torch
from helpers import loops, networks
from helpers.networks import each_setting, initialize, session_of

import ampcompat
from ampcompat import amp
from ampcompat.abtest import Memory
from ampcompat.errors import AmpTypeError
from ampcompat.observers.memory.allocations import sizes_in
from ampcompat.observers.memory.memory_report import format_bytes
from ampcompat.support.containers import BYTES
from ampcompat.support.observer_interface import Observer
from ampcompat.support.torch_compat import features, thread_context

# Linear(6, 8) and Linear(8, 3) have 83 elements in 4 params, the batch norm 16 in 2, as many in buffers, and a count.
WEIGHTS, NORM = 83, 16


def adam_of(params):
    return torch.optim.Adam(params, lr=0.01)


def count_size():
    """Return the bytes of Adam's count of steps: it is a Python number in older torch."""
    param = torch.nn.Parameter(torch.zeros(1))
    param.grad = torch.zeros(1)
    optimizer = adam_of([param])
    optimizer.step()
    return sum(sizes_in(dict(optimizer.state)).values()) - 8


def plain_training():
    """Return a model, its optimizer and a function that does an iteration, without amp."""
    model = networks.make_network()
    optimizer = adam_of(model.parameters())
    x, classes = networks.make_batch()

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), classes).backward()
        optimizer.step()

    return model, optimizer, step


@each_setting
def test_a_report_at_any_level_holds_the_kinds_counted_by_hand(setting):
    with session_of(setting) as session:
        model = networks.make_network()
        optimizer = adam_of(model.parameters())
        initialize(setting, model, optimizer, loss_scale=8.0)
        batch = networks.make_batch()
        observers = list(session.observers)
        report = ampcompat.memory_report(model, optimizer, lambda: networks.train_step(model, optimizer, batch))
        assert session.observers == observers
    assert report.level == setting.level and report.num_params == WEIGHTS + NORM
    low, high = BYTES[setting.low], BYTES[setting.high]
    weight = low if setting.casts_weights else high
    norm = low if setting.level == "O3" else high
    update = high if setting.has_masters else weight  # of the params that the optimizer has
    assert report.peak_by_kind.parameters == WEIGHTS * weight + NORM * norm
    assert report.peak_by_kind.masters == (WEIGHTS * high if setting.has_masters else 0)
    assert report.peak_by_kind.optimizer == 2 * (WEIGHTS * update + NORM * norm) + 6 * count_size()
    assert report.peak_by_kind.model_buffers == NORM * norm + 8
    # Gradients of small masters share one tensor, and begin in it at multiples of 16 elements.
    gradients = WEIGHTS * update + NORM * norm
    assert 0 <= report.peak_by_kind.gradients - gradients <= (4 * 15 * 8 if setting.has_masters else 0)
    assert report.peak_total == report.at_peak.total


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_report_without_amp_names_its_level_and_leaves_the_optimizer_alone(is_disabled):
    model, optimizer, step = plain_training()
    if is_disabled:
        amp.initialize(model, optimizer, enabled=False)
    before = dict(vars(optimizer))
    report = ampcompat.memory_report(model, optimizer, step)
    assert "step" not in vars(optimizer) or vars(optimizer)["step"] == before["step"]
    assert report.level == "float32 without amp"
    assert report.peak_by_kind.parameters == report.peak_by_kind.gradients == 99 * 4


@networks.settings_at("O1", "O2")
def test_steps_that_overflow_are_not_measured_unless_all_do(setting):
    calls = []
    with session_of(setting):
        model = networks.make_network()
        optimizer = adam_of(model.parameters())
        initialize(setting, model, optimizer, loss_scale="dynamic", init_scale=8.0)
        x, classes = networks.make_batch()

        def step(bad):
            calls.append(1)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), classes)
            loops.step(loss * (float("inf") if bad(len(calls)) else 1.0), optimizer)

        report = ampcompat.memory_report(model, optimizer, lambda: step(lambda count: count < 4))
        assert len(calls) == 5 and "was skipped" not in str(report)
        report = ampcompat.memory_report(model, optimizer, lambda: step(lambda count: True))
        assert len(calls) == 5 + 10 + 1 and "The measured step was skipped" in str(report)


def test_a_table_lists_every_kind():
    report = ampcompat.memory_report(*plain_training())
    lines = str(report).splitlines()
    assert lines[0] == "Memory of one step at float32 without amp, 99 params"
    assert lines[1].split("  ")[-1] == "at its own peak"
    kinds = [line.split("  ")[0].strip() for line in lines[2:12]]
    assert kinds[:4] == ["parameters", "gradients", "masters", "optimizer state"]
    assert kinds[4:] == [
        "activations",
        "model buffers",
        "half copies of weights",
        "temporaries",
        "sum",
        "bytes per param",
    ]
    assert len({len(line) for line in lines[1:12]}) == 1
    has_notes = any(line.startswith("Not measured, ") for line in lines[12:])
    assert has_notes == (not features.has_dispatch_modes())


def test_records_have_the_fields_of_abtest_memory():
    report = ampcompat.memory_report(*plain_training())
    assert Memory(**report.usage.record()).peak_total == report.peak_total


def test_several_models_and_optimizers_are_measured_together():
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second)]

    def step():
        second(first(torch.ones(1, 4))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    report = ampcompat.memory_report([first, second], optimizers, step)
    assert report.peak_by_kind.parameters == report.peak_by_kind.optimizer == 160


def test_a_step_that_raises_raises_and_leaves_all_as_it_was():
    model, optimizer, step = plain_training()
    calls = []

    def failing():
        calls.append(1)
        step()
        if len(calls) == 2:
            raise ZeroDivisionError

    before = vars(optimizer).get("step")
    with pytest.raises(ZeroDivisionError):
        ampcompat.memory_report(model, optimizer, failing)
    assert vars(optimizer).get("step") == before
    assert thread_context.saved_tensor_hooks() is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (None, "optimizer", "step"),
            "memory_report expected model to be .*, and model is of type NoneType",
        ),
        (
            ("model", 3, "step"),
            "memory_report expected optimizer to be .*, and optimizer is of type int",
        ),
        (("model", "optimizer", None), "expected step to be a function, not NoneType"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    parts = dict(zip(("model", "optimizer", "step"), plain_training()))
    with pytest.raises(AmpTypeError, match=message):
        ampcompat.memory_report(*[parts.get(each, each) if isinstance(each, str) else each for each in arguments])


@pytest.mark.parametrize(
    "size, text",
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (-2 * 10**6, "-2.00 MB"), (10**13, "10000.00 GB")],
)
def test_bytes_are_formatted_in_powers_of_a_thousand(size, text):
    assert format_bytes(size) == text


def test_observers_of_a_session_are_called_in_the_steps_of_a_report():
    calls = []

    class StepRecorder(Observer):
        def after_step(self, adapter):
            calls.append(adapter)

    with ampcompat.session("O1", observers=[StepRecorder()], verbosity=0):
        model = networks.make_network()
        optimizer = adam_of(model.parameters())
        amp.initialize(model, optimizer)
        ampcompat.memory_report(model, optimizer, lambda: networks.train_step(model, optimizer, networks.make_batch()))
    assert len(calls) == 2
