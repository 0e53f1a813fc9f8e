"""Training loops of every shape against a float64 loop of plain torch.

The networks are linear in their params, and gradients come from hand-picked values, so all errors are rounding errors.
"""

import torch
from helpers import loops
from helpers.networks import each_setting, initialize

from ampcompat import amp


class SharpnessAware(torch.optim.SGD):
    """SAM's two steps in one: move along the gradient, compute the gradient there, restore the weights, step."""

    RADIUS = 2.0**-3

    def step(self, closure):
        params = [param for group in self.param_groups for param in group["params"]]
        moves = [param.grad.sign() * self.RADIUS for param in params]
        with torch.no_grad():
            for param, move in zip(params, moves):
                param.add_(move)
        self.zero_grad()
        loss = closure()
        with torch.no_grad():
            for param, move in zip(params, moves):
                param.sub_(move)
        super().step()
        return loss


def begin(setting, make, loss_scale):
    """Initialize a linear model; return it, a batch, and a plain float64 model with the same weights."""
    torch.manual_seed(0)
    model, reference = torch.nn.Linear(4, 2).to(setting.high), torch.nn.Linear(4, 2).double()
    reference.load_state_dict(model.state_dict())
    optimizer, plain = make(model.parameters(), lr=2.0**-4), make(reference.parameters(), lr=2.0**-4)
    initialize(setting, model, optimizer, loss_scale=loss_scale)
    batch = torch.randint(-4, 5, (2, 4), generator=torch.Generator().manual_seed(5)).to(setting.high) / 4
    return batch, (model, optimizer), (reference, plain)


def check(setting, optimizer, reference, roundings):
    """Compare with float64 weights; ``roundings`` counts gradients that the low dtype has rounded."""
    eps = torch.finfo(setting.high if setting.level == "O0" else setting.low).eps
    for mine, right in zip(amp.master_params(optimizer), reference.parameters()):
        assert (mine.detach().double() - right.detach()).abs().max() <= roundings * eps * max(1.0, right.abs().max())


@each_setting
def test_a_graph_that_is_walked_twice_gives_twice_the_gradient(setting, session):
    batch, (model, optimizer), (reference, plain) = begin(setting, torch.optim.SGD, 2.0**7)
    loss = model(batch).sum()
    for again in (True, False):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(retain_graph=again)
    optimizer.step()
    (2 * reference(batch.double()).sum()).backward()
    plain.step()
    check(setting, optimizer, reference, roundings=4)


@each_setting
def test_a_two_step_optimizer_takes_its_second_gradient_at_the_moved_weights(setting, session):
    batch, (model, optimizer), (reference, plain) = begin(setting, SharpnessAware, 2.0**3)

    def backward():
        loss = model(batch).to(setting.high).pow(2).sum()
        loops.backward(loss, optimizer)
        return loss

    def plain_backward():
        loss = reference(batch.double()).pow(2).sum()
        loss.backward()
        return loss

    backward()
    mine = optimizer.step(backward)
    plain_backward()
    right = plain.step(plain_backward)
    eps = torch.finfo(setting.high if setting.level == "O0" else setting.low).eps
    assert abs(float(mine.detach()) - float(right.detach())) <= 64 * eps * abs(float(right.detach()))
    check(setting, optimizer, reference, roundings=64)
