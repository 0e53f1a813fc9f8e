"""Training loops of every shape against a float64 loop of plain torch.

The networks are linear in their params, and gradients come from hand-picked values, so all errors are rounding errors.
"""

import torch
from helpers import loops
from helpers.networks import each_setting, initialize, session_of

from ampcompat import amp

SCALE = 2.0**7
MICRO = 7  # by three: the last step has one


def make_linear(setting, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 2).to(setting.high)


def copied(model):
    """Return a plain float64 model with the same weights."""
    twin = torch.nn.Linear(model.in_features, model.out_features).double()
    for mine, theirs in zip(twin.parameters(), model.parameters()):
        mine.data.copy_(theirs.data)
    return twin


def micro_batches(setting, count=MICRO):
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(-4, 5, (2, 4), generator=generator).to(setting.high) / 4 for _ in range(count)]


def weights(optimizer):
    return [param.detach().double() for param in amp.master_params(optimizer)]


def check(setting, optimizer, reference, roundings):
    """Compare with float64 weights; ``roundings`` counts gradients that the low dtype has rounded."""
    exact = setting.level == "O0"
    eps = torch.finfo(setting.high if exact else setting.low).eps
    for mine, right in zip(weights(optimizer), reference.parameters()):
        assert (mine - right.detach()).abs().max() <= roundings * eps * max(1.0, right.abs().max())


@each_setting
def test_a_graph_that_is_walked_twice_gives_twice_the_gradient(setting, session):
    model = make_linear(setting)
    reference = copied(model)
    (batch,) = micro_batches(setting, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)
    initialize(setting, model, optimizer, loss_scale=SCALE)
    loss = model(batch).sum()
    for again in (True, False):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(retain_graph=again)
    optimizer.step()
    (2 * reference(batch.double()).sum()).backward()
    torch.optim.SGD(reference.parameters(), lr=2.0**-4).step()
    check(setting, optimizer, reference, roundings=4)


@each_setting
def test_alternating_losses_train_generator_and_discriminator(setting, capsys):
    """The classic loop: three losses, two optimizers, the generator's pass leaves gradients in the discriminator."""
    with session_of(setting, verbosity=1):
        nets = [make_linear(setting, 0), torch.nn.Linear(2, 1).to(setting.high)]
        references = [copied(net) for net in nets]
        optimizers = [torch.optim.SGD(net.parameters(), lr=2.0**-5) for net in nets]
        plains = [torch.optim.SGD(net.parameters(), lr=2.0**-5) for net in references]
        initialize(setting, nets, optimizers, num_losses=3, loss_scale=SCALE)
        capsys.readouterr()

        def play(generator, discriminator, steps, cast, backward):
            for real, noise in zip(micro_batches(setting, 4)[:2], micro_batches(setting, 4)[2:]):
                steps[1].zero_grad()
                backward(-discriminator(cast(real[:, :2])).sum(), steps[1], 0)
                backward(discriminator(generator(cast(noise)).detach()).sum(), steps[1], 1)
                steps[1].step()
                steps[0].zero_grad()
                backward(-discriminator(generator(cast(noise))).sum(), steps[0], 2)
                steps[0].step()

        def scaled_backward(loss, optimizer, loss_id):
            loops.backward(loss.to(setting.high), optimizer, loss_id=loss_id)

        play(nets[0], nets[1], optimizers, lambda batch: batch, scaled_backward)
        play(references[0], references[1], plains, torch.Tensor.double, lambda loss, *rest: loss.backward())
        for optimizer, reference in zip(optimizers, references):
            check(setting, optimizer, reference, roundings=16)
        assert "scaled" not in capsys.readouterr().out


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


@each_setting
def test_a_two_step_optimizer_takes_its_second_gradient_at_the_moved_weights(setting, session):
    model = make_linear(setting)
    reference = copied(model)
    (batch,) = micro_batches(setting, 1)
    optimizer = SharpnessAware(model.parameters(), lr=2.0**-4)
    plain = SharpnessAware(reference.parameters(), lr=2.0**-4)
    initialize(setting, model, optimizer, loss_scale=2.0**3)

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
