"""The cause of a run of skipped steps is reported, once."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.errors import GradientOverflowError


class Net(torch.nn.Module):
    """Multiplies the input of its second layer by ``factor``."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.factor = factor

    def forward(self, x):
        return self.second(self.first(x) * self.factor)


class InfiniteGradient(torch.autograd.Function):
    """The identity, whose gradient is inf."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("inf")


def train(model, steps, corrupt=lambda step, loss: loss, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = corrupt(step, model(torch.ones(2, 3)).float().sum())
        loops.step(loss, optimizer)
    return optimizer


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_persistent_nan_is_explained_once_at_the_limit(each, capsys):
    model = Net(factor=float("nan"))
    train(model, 8, opt_level=each, max_skips=5)
    (sentence,) = [line for line in capsys.readouterr().out.splitlines() if "in a row were skipped" in line]
    assert "5 steps in a row" in sentence
    assert "The loss was nan before scaling." in sentence
    assert "In the forward pass nan was there already in the input of second" in sentence
    assert "second.bias" not in sentence and "What to try: check the data" in sentence
    assert ampcompat.current().scalers[0].loss_scale() == 2.0**8


@pytest.mark.parametrize("each, name", [("O1", "1"), ("O2", "the whole Sequential")])
def test_a_finite_loss_with_infinite_gradients_names_the_module(each, name, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    train(model, 4, lambda step, loss: InfiniteGradient.apply(loss), opt_level=each, max_skips=3)
    sentence = [line for line in capsys.readouterr().out.splitlines() if "in a row" in line][0]
    assert "The loss was finite" in sentence
    assert f"inf came first in the gradient at the output of {name}," in sentence
    assert "lower scales did not help, so the unscaled gradients are too large" in sentence


@pytest.mark.parametrize("each", ["O1", "O2"])
@pytest.mark.parametrize(
    "options", [{"min_loss_scale": 2.0**15}, {"max_skips": 1}], ids=lambda options: "".join(options)
)
def test_a_first_skip_at_the_limit_is_explained_without_activations(each, options, capsys):
    train(Net(), 4, lambda step, loss: InfiniteGradient.apply(loss), opt_level=each, **options)
    (sentence,) = [line for line in capsys.readouterr().out.splitlines() if "in a row were skipped" in line]
    assert "1 steps in a row" in sentence
    assert "The loss was finite. In the backward pass inf came first in the gradient of second.bias" in sentence
    assert "No module's output was recorded: diagnose=True" in sentence


def test_a_run_that_recovers_prints_nothing(capsys):
    def corrupt(step, loss):
        return loss * float("inf") if step % 3 else loss

    train(Net(), 12, corrupt, opt_level="O1", init_scale=8.0, max_skips=3)
    assert "in a row" not in capsys.readouterr().out


def test_hooks_are_removed_when_a_step_is_not_skipped():
    model = Net()
    factors = [float("inf"), float("inf"), 1.0]
    train(model, 3, lambda step, loss: loss * factors[step], opt_level="O1", max_skips=3, verbosity=0)
    assert model.second._forward_hooks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loops.backward(model(torch.ones(2, 3)).float().sum(), optimizer)
    assert not model.second._forward_hooks


def test_the_limit_can_be_changed_by_a_later_initialize():
    model = Net()
    optimizer = train(model, 1, opt_level="O1", max_skips=50, verbosity=0)
    amp.initialize(model, optimizer, opt_level="O1", max_skips=1, raise_on_max_skips=True, verbosity=0)
    with pytest.raises(GradientOverflowError):
        loops.step(model(torch.ones(2, 3)).float().sum() * float("inf"), optimizer)
    assert len(ampcompat.current().observers) == 1


def test_closing_the_session_removes_the_hooks():
    model = Net()
    train(model, 2, lambda step, loss: loss * float("inf"), opt_level="O1", max_skips=3, verbosity=0)
    assert model.second._forward_hooks
    ampcompat.reset()
    assert not model.second._forward_hooks


def test_a_static_scale_skips_with_skip_static_overflow():
    model = Net()
    before = model.second.weight.detach().clone()
    optimizer = train(
        model, 1, lambda step, loss: loss * float("inf"), opt_level="O1", loss_scale=8.0, skip_static_overflow=True
    )
    assert amp.step_was_skipped(optimizer) and torch.equal(model.second.weight.detach(), before)
    assert ampcompat.current().scalers[0].loss_scale() == 8.0
