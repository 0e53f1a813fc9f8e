"""Backward passes see no casts, recomputed forward passes see those of their first time, function transforms work."""

import pytest
import torch
import torch.nn.functional as F
from opened import call_checkpoint, each_setting, opened
from torch.autograd import backward, grad  # by name and before any backend: as user code does

# torch 1.12's checkpoint queries CUDA's autocast on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available")


def make_net(high):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6), torch.nn.LayerNorm(6)]
    return torch.nn.Sequential(*layers).to(high)


class Seen(torch.nn.Module):
    """Notes the dtype of a product at each call."""

    def __init__(self, backend, net):
        super().__init__()
        self.net, self.backend, self.dtypes, self.active = net, backend, [], []

    def forward(self, x):
        # First of all: a recomputation stops as soon as it has what it came for.
        self.dtypes.append(F.linear(x, self.net[0].weight).dtype)
        self.active.append(self.backend.active())
        return self.net(x)


@each_setting
@pytest.mark.parametrize("held_since_before", [False, True])
def test_gradients_of_a_region_without_casts_equal_the_plain_run_bit_for_bit(setting, held_since_before):
    net, x = make_net(setting.high), torch.randn(16, 6, dtype=setting.high)
    expected = grad(net(x).pow(2).sum(), list(net.parameters()))
    with opened(setting) as backend:
        with backend.paused():
            loss = net(x).pow(2).sum()
        found = (grad if held_since_before else torch.autograd.grad)(loss, list(net.parameters()), retain_graph=True)
        assert all(map(torch.equal, found, expected))
        backward(loss) if held_since_before else loss.backward()
        assert all(torch.equal(param.grad, each) for param, each in zip(net.parameters(), expected))


@each_setting
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("paused_at_call", [False, True], ids=["cast", "paused"])
def test_checkpoint_recomputes_in_the_dtypes_of_its_call(setting, reentrant, paused_at_call):
    x = torch.randn(4, 6, dtype=setting.high, requires_grad=True)
    with opened(setting) as backend:
        seen = Seen(backend, make_net(setting.high))
        if paused_at_call:
            with backend.paused():
                loss = call_checkpoint(seen, reentrant, x).sum()
        else:
            loss = call_checkpoint(seen, reentrant, x).sum()
        loss.backward()
    assert seen.dtypes == [setting.high if paused_at_call else setting.low] * 2
    assert seen.active == [not paused_at_call] * 2


@each_setting
def test_casts_are_as_before_after_a_checkpoint_inside_a_pause(setting):
    with opened(setting) as backend:
        net = make_net(setting.high)
        loss = call_checkpoint(net, True, torch.randn(4, 6, dtype=setting.high, requires_grad=True)).sum()
        with backend.paused():
            loss.backward()
            assert not backend.active()
        assert backend.active()


@each_setting
def test_gradient_penalty_differentiates_twice(setting):
    net, x = make_net(setting.high), torch.randn(16, 6, dtype=setting.high)

    def penalty():
        between = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
        return (slope.norm(dim=1) - 1).pow(2).mean()

    penalty().backward()
    expected = [p.grad.clone() for p in net[:3].parameters()]
    net.zero_grad()
    with opened(setting):
        loss = penalty()
        assert loss.dtype is setting.high
        loss.backward()
    for parameter, wanted in zip(net[:3].parameters(), expected):
        assert parameter.grad.dtype is setting.high
        assert torch.allclose(parameter.grad, wanted, rtol=0.1, atol=0.1 * float(wanted.abs().max()) + 1e-6)
