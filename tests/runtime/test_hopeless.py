"""A run that overflows for ever is told why, once, in words that name the place."""

import pytest
import torch

import ampcompat
from ampcompat import amp
from ampcompat.errors import GradientOverflowError


class Net(torch.nn.Module):
    """Its second layer can be made to explode."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.factor = factor

    def forward(self, x):
        return self.second(self.first(x) * self.factor)


def train(model, steps, spoil=lambda step, loss: loss, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = spoil(step, model(torch.ones(2, 3)).float().sum())
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_persistent_nan_is_diagnosed_once_at_the_limit(each, capsys):
    model = Net(factor=float("nan"))
    train(model, 8, opt_level=each, max_skips=5)
    said = [line for line in capsys.readouterr().out.splitlines() if "in a row were skipped" in line]
    (sentence,) = said
    assert "5 steps in a row" in sentence
    assert "the loss itself was nan" in sentence.lower()
    assert "first module with nan in its output was second" in sentence
    assert "second.bias" not in sentence.split("gradients")[0]
    assert ampcompat.current().scalers[0].loss_scale() == 2.0**8


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_finite_loss_with_infinite_gradients_names_the_params(each, capsys):
    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("inf")

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    train(model, 4, lambda step, loss: Explode.apply(loss), opt_level=each, max_skips=3)
    sentence = [line for line in capsys.readouterr().out.splitlines() if "in a row" in line][0]
    assert "The loss was finite" in sentence
    assert "backward pass: 1.bias (" in sentence


def test_it_raises_where_it_is_asked_to():
    with pytest.raises(GradientOverflowError, match="3 steps in a row"):
        train(Net(float("inf")), 5, opt_level="O1", max_skips=3, raise_on_max_skips=True, verbosity=0)
    assert issubclass(GradientOverflowError, FloatingPointError)


def test_a_scale_at_its_floor_is_diagnosed_before_the_limit(capsys):
    train(Net(float("nan")), 4, opt_level="O1", min_loss_scale=2.0**15)
    assert "1 steps in a row" in capsys.readouterr().out


def test_a_run_that_recovers_hears_nothing(capsys):
    def spoil(step, loss):
        return loss * float("inf") if step % 3 else loss

    train(Net(), 12, spoil, opt_level="O1", init_scale=8.0, max_skips=3)
    assert "in a row" not in capsys.readouterr().out


def test_closing_the_session_takes_the_hooks_away():
    model = Net()
    train(model, 2, lambda step, loss: loss * float("inf"), opt_level="O1", max_skips=3, verbosity=0)
    assert model.second._forward_hooks
    ampcompat.reset()
    assert not model.second._forward_hooks


@pytest.mark.parametrize("interval", [1, 3])
def test_the_numbers_of_the_scale_can_be_chosen(interval):
    options = dict(init_scale=4.0, growth_factor=3.0, growth_interval=interval, verbosity=0)
    train(Net(), interval, opt_level="O1", **options)
    assert ampcompat.current().scalers[0].loss_scale() == 12.0


def test_hysteresis_skips_every_overflow_and_backs_off_at_the_nth():
    scales = []

    def spoil(step, loss):
        scales.append(ampcompat.current().scalers[0].loss_scale())
        return loss * float("inf") if step < 3 else loss

    train(Net(), 6, spoil, opt_level="O1", init_scale=8.0, backoff_factor=0.25, hysteresis=2, verbosity=0)
    assert scales == [8.0, 8.0, 2.0, 0.5, 0.5, 0.5]


def test_a_static_scale_skips_only_where_it_is_asked_to():
    model = Net()
    before = model.second.weight.detach().clone()
    optimizer = train(
        model, 1, lambda step, loss: loss * float("inf"), opt_level="O1", loss_scale=8.0, skip_static_overflow=True
    )
    assert amp.step_was_skipped(optimizer) and torch.equal(model.second.weight.detach(), before)
    assert ampcompat.current().scalers[0].loss_scale() == 8.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
        {"hysteresis": 1.5},
        {"init_scale": "many"},
        {"max_skips": 0},
    ],
    ids=lambda wrong: "".join(wrong),
)
def test_a_number_that_makes_no_sense_is_named(wrong):
    (name,) = wrong
    with pytest.raises(RuntimeError, match=name):
        amp.initialize(Net(), **wrong)
