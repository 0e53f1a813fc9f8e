"""The public functions ``memory_report`` and ``estimate``."""

import pytest
import torch
from helpers import networks
from helpers.networks import each_setting, initialize, session_of

import ampcompat
from ampcompat import amp
from ampcompat.abtest import Memory
from ampcompat.errors import AmpError, AmpTypeError
from ampcompat.support.observer import Observer
from ampcompat.support.torch_compat import features, thread_context


def adam_of(params):
    return torch.optim.Adam(params, lr=0.01)


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
def test_a_report_at_any_level_holds_what_was_predicted(setting):
    with session_of(setting) as session:
        model = networks.make_network()
        optimizer = adam_of(model.parameters())
        initialize(setting, model, optimizer, loss_scale=8.0)
        batch = networks.make_batch()
        observers = list(session.observers)
        report = ampcompat.memory_report(model, optimizer, lambda: networks.train_step(model, optimizer, batch))
        assert session.observers == observers
    full = report.predicted.by_kind
    assert report.level == setting.level and report.num_params == 99
    assert report.peak_by_kind.parameters == full.parameters
    assert report.peak_by_kind.masters == full.masters
    assert report.peak_by_kind.optimizer == full.optimizer
    # Gradients of small masters share one tensor, and begin in it at multiples of 16 elements.
    assert 0 <= report.peak_by_kind.gradients - full.gradients <= (4 * 15 * 8 if setting.has_masters else 0)
    assert report.peak_total == report.at_peak.total


def test_a_report_without_amp_names_its_level_and_leaves_the_optimizer_alone():
    model, optimizer, step = plain_training()
    before = dict(vars(optimizer))
    report = ampcompat.memory_report(model, optimizer, step)
    assert "step" not in vars(optimizer) or vars(optimizer)["step"] == before["step"]
    assert report.level == "float32 without amp"
    assert report.peak_by_kind.parameters == report.peak_by_kind.gradients == 99 * 4
    assert report.predicted.formula == report.predicted.total


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
            with amp.scale_loss(loss * (float("inf") if bad(len(calls)) else 1.0), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()

        report = ampcompat.memory_report(model, optimizer, lambda: step(lambda count: count < 4))
        assert len(calls) == 5 and "was skipped" not in str(report)
        report = ampcompat.memory_report(model, optimizer, lambda: step(lambda count: True))
        assert len(calls) == 5 + 10 + 1 and "The measured step was skipped" in str(report)


def test_a_table_lists_every_kind_measured_and_predicted():
    report = ampcompat.memory_report(*plain_training())
    lines = str(report).splitlines()
    assert lines[0] == "Memory of one step at float32 without amp, 99 params"
    assert lines[1].split("  ")[-1] == "formula"
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
    if features.has_dispatch_modes():
        assert any(line.startswith("Temporaries, ") for line in lines[12:])
    else:
        assert any(line.startswith("Not measured, ") for line in lines[12:])


def test_records_have_the_fields_of_abtest_memory():
    report = ampcompat.memory_report(*plain_training())
    assert Memory(**report.record()).peak_total == report.peak_total
    assert Memory(**report.predicted.record()).peak_total == report.predicted.total


def test_several_models_and_optimizers_are_measured_together():
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second)]

    def step():
        second(first(torch.ones(1, 4))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    report = ampcompat.memory_report([first, second], optimizers, step)
    assert report.peak_by_kind.parameters == report.peak_by_kind.optimizer == report.predicted.optimizer == 160


def test_an_optimizer_that_cannot_be_made_again_gets_no_prediction_but_a_reason():
    class Own(torch.optim.SGD):
        def __init__(self, model):
            super().__init__(model.parameters(), lr=0.1)

    model = torch.nn.Linear(2, 2)
    optimizer = Own(model)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    report = ampcompat.memory_report(model, optimizer, step)
    assert report.predicted is None
    assert "No prediction: The optimizer could not be created" in str(report)


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


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, adam_of])
def test_an_estimate_is_a_record_and_a_table(optimizer_class):
    found = ampcompat.estimate(torch.nn.Linear(1000, 1000, bias=False), optimizer_class, "O2")
    assert (found.parameters, found.gradients, found.masters) == (2 * 10**6, 4 * 10**6, 4 * 10**6)
    assert found.optimizer // 10**6 == 8 and found.buffers == 0
    assert found.formula // 10**6 == 16 and found.total // 10**6 == 18
    text = str(found)
    assert "Predicted at O2 for 1,000,000 params" in text and "16.00" in text and "18.00" in text
    assert "2.00 MB more for gradients: gradients of masters" in text


def test_an_estimate_takes_the_options_of_initialize():
    model = networks.make_network()
    kept = ampcompat.estimate(model, adam_of, "O2", keep_fp32="0")
    assert kept.masters == 4 * 27
    assert ampcompat.estimate(model, adam_of, "O2", keep_batchnorm_fp32=False).masters == 4 * 99
    assert ampcompat.estimate(model, adam_of, "O2", master_weights=False).masters == 0


def test_an_estimate_touches_neither_the_model_nor_the_random_numbers():
    model = networks.make_network()
    before, state = networks.weights_of(model), torch.get_rng_state()
    ampcompat.estimate(model, adam_of, "O2")
    assert networks.differing(before, networks.weights_of(model)) == []
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((torch.nn.Linear(1, 1), torch.optim.Adam, "02"), AmpError),
        ((torch.nn.Linear(1, 1), None, "O2"), AmpTypeError),
        ((3, torch.optim.Adam, "O2"), AmpTypeError),
    ],
)
def test_wrong_arguments_of_estimate_are_errors(arguments, error):
    with pytest.raises(error):
        ampcompat.estimate(*arguments)


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
