"""``ampcompat.gradient_histogram`` of a model, an optimizer, a run with diagnose: unscaled values at every level."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError, AmpTypeError


def passed(level, **options):
    """Return a model and an optimizer after one pass: two gradients of 2**-3, two of 2**-4."""
    model = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    loops.backward(model(torch.tensor([[1.0, 0.5]])).sum() * 0.125, optimizer)
    return model, optimizer


def test_a_model_and_its_optimizer_give_the_same_unscaled_values(level):
    model, optimizer = passed(level)
    for source in (model, optimizer, [model], (optimizer,)):
        assert ampcompat.gradient_histogram(source).counts == {-3: 2, -4: 2}


def test_without_amp_the_gradients_are_counted_as_they_are():
    model = torch.nn.Linear(1, 1, bias=False)
    model(torch.tensor([[4.0]])).sum().backward()
    assert ampcompat.gradient_histogram(model).counts == {2: 1}


def test_a_run_with_diagnose_counts_its_gradients(level):
    passed(level, diagnose=True)
    assert ampcompat.gradient_histogram().counts == {-3: 2, -4: 2}


def test_wrong_arguments_and_missing_gradients_are_errors():
    with pytest.raises(AmpError, match="diagnose=True"):
        ampcompat.gradient_histogram()
    with pytest.raises(AmpTypeError, match="not int"):
        ampcompat.gradient_histogram(3)
    model, optimizer = passed("O1")
    optimizer.zero_grad()
    model.weight.grad = None
    with pytest.raises(AmpError, match="no gradients"):
        ampcompat.gradient_histogram(model)


def test_scaled_gradients_are_an_error():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    loops.backward(model(torch.ones(1, 2)).sum(), optimizer, delay_unscale=True)
    with pytest.raises(AmpError, match="still scaled"):
        ampcompat.gradient_histogram(optimizer)
