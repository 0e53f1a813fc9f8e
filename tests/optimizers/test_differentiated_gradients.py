"""Optimizers that differentiate the gradients (AdaHessian, Sophia) get true second derivatives at O1 and O4."""

import pytest
import torch
from helpers.networks import REAL, initialize, session_of

from ampcompat import amp


class Newton(torch.optim.SGD):
    """Divides each gradient by the sum of its row of the Hessian, which it computes from the gradients' graph."""

    def step(self, closure=None):
        params = [param for group in self.param_groups for param in group["params"]]
        grads = [param.grad for param in params]
        curvatures = torch.autograd.grad(grads, params, grad_outputs=[torch.ones_like(grad) for grad in grads])
        with torch.no_grad():
            for param, grad, curvature in zip(params, grads, curvatures):
                param.sub_(grad / curvature.abs())


def trained(setting=None, **options):
    """Return the weights after three steps on a loss whose second derivatives change."""
    torch.default_generator.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = Newton(model.parameters(), lr=1.0)
    if setting is not None:
        model, optimizer = initialize(setting, model, optimizer, **options)
    inputs = torch.tensor([[1.0, 0.5, 0.25], [0.5, 1.0, 2.0]])
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(inputs).float() - 3).pow(4).mean()
        if setting is None:
            loss.backward(create_graph=True)
        else:
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward(create_graph=True)
        optimizer.step()
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("loss_scale", [1.0, 32.0, "dynamic"])
@pytest.mark.parametrize("setting", [each for each in REAL if each.values[0].level in ("O0", "O1", "O4")])
def test_an_optimizer_that_differentiates_gradients_gets_true_second_derivatives(setting, loss_scale):
    plain = trained()
    with session_of(setting):
        weights = trained(setting, loss_scale=loss_scale, max_loss_scale=16.0)
    assert (weights - plain).abs().max() < {"O0": 1e-6, "O1": 5e-3, "O4": 5e-2}[setting.level]
