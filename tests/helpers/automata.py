"""The two places where a loss scale is updated: the host, and the device where the optimizer takes ``found_inf``."""

import pytest
import torch

from ampcompat import amp
from helpers import fused_optimizers

needs_device = pytest.mark.skipif(
    fused_optimizers.why_not("Adam") is not None, reason="this torch has no fused Adam on the CPU"
)


def on_host(params):
    """Return an optimizer whose loss scale is updated on the host."""
    return torch.optim.Adam(params, lr=2.0**-10)


def on_device(params):
    """Return an optimizer whose loss scale is updated on the device, ahead of the host."""
    return torch.optim.Adam(params, lr=2.0**-10, fused=True)


each_automaton = pytest.mark.parametrize(
    "make_optimizer",
    [pytest.param(on_host, id="host"), pytest.param(on_device, id="device", marks=needs_device)],
)


def initialized(make_optimizer, **options):
    """Return a model and its optimizer at O1, or at the level in ``options``."""
    model = torch.nn.Linear(3, 2)
    options = dict({"opt_level": "O1", "verbosity": 0}, **options)
    return amp.initialize(model, make_optimizer(model.parameters()), **options)


def step(model, optimizer, overflows=False):
    """Do one step; return the loss scale that it used as a tensor, which the host has not read."""
    # Small enough not to overflow by itself at any scale that the tests reach.
    loss = model(torch.full((1, 3), 2.0**-12)).float().sum() * 2.0**-12
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scale = scaled_loss.detach() / loss.detach()
        (scaled_loss * (float("inf") if overflows else 1.0)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return scale
