"""Every optimizer of torch, at every level, against the same algorithm run in float64 on the same gradients.

The loss is linear in the weights, so its gradient is known to the last bit, and the scale is a power of two. At O3
torch's own arithmetic in half is the reference: amp must add nothing to it, but it cannot mend it either (Adam's eps
is 0 there). Their options, and sparse gradients, are in ``torch_databases/test_optimizers.py``.
"""

import inspect

import pytest
import torch
from helpers import loops, precision

from ampcompat import amp

STEPS = 4
SCALE = 128.0  # half holds every gradient times this
ROWS, COLUMNS = 4, 3


def torch_optimizers():
    """Return the optimizers of the installed torch that step on dense gradients without a closure."""
    found = [each for each in vars(torch.optim).values() if inspect.isclass(each)]
    found = [each for each in found if issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer]
    return sorted(
        {each for each in found if each.__name__ not in ("LBFGS", "SparseAdam")}, key=lambda each: each.__name__
    )


class Weights(torch.nn.Module):
    """A matrix whose gradient is what it is called with."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(ROWS, COLUMNS, generator=generator))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def gradients():
    """Return gradients that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(-8, 9, (ROWS, COLUMNS), generator=generator).float() / 8 for _ in range(STEPS)]


def reference(make, dtype):
    """Return the weights after each step of the plain optimizer in ``dtype``."""
    model = Weights().to(dtype)
    optimizer = make(model.parameters(), lr=0.1)
    history = []
    for gradient in gradients():
        model.weight.grad = gradient.to(dtype)
        optimizer.step()
        history.append(model.weight.detach().clone())
    return history


def reference_or_skip(make, level):
    try:
        if level == "O3":
            return reference(make, precision.LOW)
        reference(make, precision.HIGH)
        return reference(make, torch.float64)
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        return pytest.skip(f"plain torch cannot step this on this CPU: {str(error).splitlines()[0]}")


def agree(master, right, level):
    if level == "O3":
        return torch.equal(torch.isnan(master), torch.isnan(right)) and not (master != right)[~torch.isnan(right)].any()
    return (master.double() - right).abs().max() <= 32 * torch.finfo(precision.HIGH).eps * right.abs().max()


@pytest.mark.parametrize("make", torch_optimizers())
def test_it_updates_the_weights_as_in_float64(level, make):
    expected = reference_or_skip(make, level)
    model = Weights()
    optimizer = make(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=SCALE, verbosity=0)
    for gradient, right in zip(gradients(), expected):
        optimizer.zero_grad()
        loops.step(model(gradient), optimizer)
        (master,) = [param.detach() for param in amp.master_params(optimizer)]
        assert agree(master, right, level)
        assert torch.equal(model.weight.detach(), master.to(model.weight.dtype)) or level == "O3"
