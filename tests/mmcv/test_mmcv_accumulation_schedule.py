"""Gradient accumulation: which iterations share a step, and that each step takes the mean of their gradients."""

from types import SimpleNamespace

import hypothesis
import pytest
import torch
from hypothesis import strategies
from mmcv_loops import BareRunner

from ampcompat.mmcv import GradientCumulativeOptimizerHook, OptimizerHook
from ampcompat.mmcv.accumulation_schedule import AccumulationSchedule

runs = strategies.tuples(strategies.integers(1, 7), strategies.integers(1, 40), strategies.data())


def groups(length, total, start):
    """Return the iterations of each step: groups begin at multiples of ``length``, the first of them at ``start``."""
    found = {}
    for iteration in range(start, total):
        found.setdefault(iteration // length, []).append(iteration)
    return list(found.values())


def test_the_end_may_be_unknown():
    schedule = AccumulationSchedule(4)
    assert [schedule.advance(iteration).is_last for iteration in range(8)] == [False, False, False, True] * 2


@pytest.mark.parametrize("length", (0, -1, 2.0, True, None))
def test_a_length_that_is_no_count_is_refused(length):
    with pytest.raises(ValueError, match="cumulative_iters must be a whole number of at least 1"):
        GradientCumulativeOptimizerHook(cumulative_iters=length)


def test_an_iteration_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="Iteration 8 .* does not belong to a run of 8"):
        AccumulationSchedule(4).advance(8, 8)


class Slope(torch.nn.Module):
    """One weight, whose gradient is what the loss is multiplied by."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))


def slopes(model, iteration):
    return model.weight * float(iteration + 1)


def steps_of(hook, total, start, optimizer_class=torch.optim.SGD):
    """Return the gradient at each step of a run that was resumed at ``start``."""
    model, seen = Slope(), []
    optimizer = optimizer_class(model.parameters(), lr=1.0)
    step = optimizer.step
    optimizer.step = lambda: (seen.append(model.weight.grad.item()), step())
    BareRunner(model, optimizer, hook, slopes, total, iter=start).run()
    return seen


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(runs)
def test_each_step_takes_the_mean_gradient_of_what_it_accumulated(run):
    length, total, data = run
    start = data.draw(strategies.integers(0, total - 1))
    expected = [sum(i + 1 for i in group) / len(group) for group in groups(length, total, start)]
    hook = GradientCumulativeOptimizerHook(cumulative_iters=length)
    assert steps_of(hook, total, start) == pytest.approx(expected, rel=1e-12)
    assert steps_of(hook, total, start) == pytest.approx(expected, rel=1e-12)  # the same hook in a second run


def test_gradients_of_a_group_that_was_not_completed_are_dropped():
    model, hook = Slope(), GradientCumulativeOptimizerHook(cumulative_iters=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    runner = BareRunner(model, optimizer, hook, slopes, 8)
    runner.run(until=6)  # 4 and 5 are accumulated, and the run continues from 4
    runner.iter = 4
    runner.run()
    assert model.weight.item() == -(1 + 2 + 3 + 4) / 4 - (5 + 6 + 7 + 8) / 4


# -- warnings and errors ---------------------------------------------------------------------------------------------


def test_differences_from_a_large_batch_are_logged_once(caplog):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    hook = GradientCumulativeOptimizerHook(cumulative_iters=4)
    BareRunner(model, optimizer, hook, lambda model, _: model(torch.eye(2)).sum(), 14, iter=6).run()
    assert len(caplog.messages) == 3
    assert "Iteration 6 is in the middle of 4" in caplog.messages[0] and "divided by 2" in caplog.messages[0]
    assert "14 iterations are not a multiple of 4: the last step accumulates the 2 that are left" in caplog.messages[1]
    assert "batch norm layers" in caplog.messages[2]


def test_a_runner_without_iterations_is_refused():
    runner = SimpleNamespace(optimizer=object(), outputs={"loss": torch.zeros(())})
    with pytest.raises(RuntimeError, match="runner.iter"):
        GradientCumulativeOptimizerHook(cumulative_iters=2).after_train_iter(runner)


@pytest.mark.parametrize("outputs", ({"losses": 3}, {"loss": 3.0}, None, torch.zeros(())))
def test_outputs_without_a_loss_are_refused(outputs):
    with pytest.raises(TypeError, match="a dict with the loss"):
        OptimizerHook().after_train_iter(SimpleNamespace(optimizer=object(), outputs=outputs))


def test_several_optimizers_are_refused():
    with pytest.raises(TypeError, match="supports one optimizer, but runner.optimizer is a dict"):
        OptimizerHook().after_train_iter(SimpleNamespace(optimizer={}, outputs={}))


def test_clipping_wants_a_dict():
    with pytest.raises(TypeError, match="grad_clip must be a dict"):
        OptimizerHook(grad_clip=35)


def test_params_that_the_loss_does_not_depend_on_are_named(caplog):
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(1, 1), "idle": torch.nn.Linear(1, 1)})
    model["idle"].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    hook = OptimizerHook(detect_anomalous_params=True)
    BareRunner(model, optimizer, hook, lambda model, _: model["used"](torch.ones(1, 1)).sum(), 1).run()
    assert caplog.messages == ["idle.weight, of shape (1, 1), is not in the graph of the loss"]
