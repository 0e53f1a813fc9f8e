"""Backward passes see no casts, recomputed forward passes see those of their first time, function transforms work."""

import pytest
import torch
import torch.nn.functional as F
from opened import PAIRS, each_setting, opened
from torch.autograd import backward, grad  # by name and before any backend: as user code does
from torch.utils.checkpoint import checkpoint

# torch 1.12's checkpoint queries CUDA's autocast on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available")

REENTRANT = [True, False]


def make_net(high):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6), torch.nn.LayerNorm(6)]
    return torch.nn.Sequential(*layers).to(high)


def grads_of(net):
    grads = [parameter.grad.clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = None
    return grads


def call_checkpoint(function, x, reentrant):
    try:
        return checkpoint(function, x, use_reentrant=reentrant)
    except (TypeError, ValueError):
        if not reentrant:
            pytest.skip(f"torch {torch.__version__} has only reentrant checkpoints")
        return checkpoint(function, x)


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
def test_gradients_of_a_region_without_casts_equal_the_plain_run_bit_for_bit(setting):
    high = PAIRS[setting[1]].high
    net, x = make_net(high), torch.randn(16, 6, dtype=high)
    net(x).pow(2).sum().backward()
    expected = grads_of(net)
    with opened(setting) as backend:
        with backend.paused():
            loss = net(x).pow(2).sum()
        loss.backward()
        assert all(torch.equal(a, b) for a, b in zip(grads_of(net), expected))
        with backend.paused():
            loss = net(x).pow(2).sum()
        found = torch.autograd.grad(loss, list(net.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


@each_setting
def test_gradients_are_the_same_through_functions_that_were_imported_before(setting):
    high = PAIRS[setting[1]].high
    net, x = make_net(high), torch.randn(16, 6, dtype=high)
    expected = grad(net(x).pow(2).sum(), list(net.parameters()))
    with opened(setting) as backend:
        with backend.paused():
            loss = net(x).pow(2).sum()
        found = grad(loss, list(net.parameters()), retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
        backward(loss)
        assert all(torch.equal(a, b) for a, b in zip(grads_of(net), expected))


@each_setting
@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("paused_at_call", [False, True], ids=["cast", "paused"])
def test_checkpoint_recomputes_in_the_dtypes_of_its_call(setting, reentrant, paused_at_call):
    low, high = PAIRS[setting[1]]
    x = torch.randn(4, 6, dtype=high, requires_grad=True)
    with opened(setting) as backend:
        seen = Seen(backend, make_net(high))
        if paused_at_call:
            with backend.paused():
                loss = call_checkpoint(seen, x, reentrant).sum()
        else:
            loss = call_checkpoint(seen, x, reentrant).sum()
        loss.backward()
    assert seen.dtypes == [high if paused_at_call else low] * 2
    assert seen.active == [not paused_at_call] * 2


@each_setting
@pytest.mark.parametrize("reentrant", REENTRANT)
def test_checkpointed_gradients_equal_the_others(setting, reentrant):
    high = PAIRS[setting[1]].high
    net, x = make_net(high), torch.randn(4, 6, dtype=high)
    with opened(setting) as backend:
        net(x.clone().requires_grad_()).pow(2).sum().backward()
        expected = grads_of(net)
        backend.clear_cache()
        call_checkpoint(net, x.clone().requires_grad_(), reentrant).pow(2).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(grads_of(net), expected))


@each_setting
def test_casts_are_as_before_after_a_checkpoint_inside_a_pause(setting):
    high = PAIRS[setting[1]].high
    with opened(setting) as backend:
        net = make_net(high)
        loss = call_checkpoint(net, torch.randn(4, 6, dtype=high, requires_grad=True), True).sum()
        with backend.paused():
            loss.backward()
            assert not backend.active()
        assert backend.active()


@each_setting
def test_gradient_penalty_differentiates_twice(setting):
    low, high = PAIRS[setting[1]]
    net, x = make_net(high), torch.randn(16, 6, dtype=high)

    def penalty():
        between = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
        return (slope.norm(dim=1) - 1).pow(2).mean()

    penalty().backward()
    expected = [p.grad.clone() for p in net[:3].parameters()]
    net.zero_grad()
    with opened(setting):
        loss = penalty()
        assert loss.dtype is high
        loss.backward()
    for parameter, wanted in zip(net[:3].parameters(), expected):
        assert parameter.grad.dtype is high
        assert torch.allclose(parameter.grad, wanted, rtol=0.1, atol=0.1 * float(wanted.abs().max()) + 1e-6)


@each_setting
def test_function_transforms_work_over_a_model(setting):
    if not hasattr(torch, "func"):
        pytest.skip(f"torch {torch.__version__} has no torch.func")
    low, high = PAIRS[setting[1]]
    net, x = make_net(high), torch.randn(5, 6, dtype=high)
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(net, parameters, (x,)).pow(2).sum()

    expected = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    with opened(setting):
        net(x)  # casts are in the cache, and must not be seen inside the transforms
        found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        single = torch.func.grad(loss)(dict(net.named_parameters()), x[0])
        again = net(x)
        again.sum().backward()
    for name in parameters:
        scale = float(expected[name].abs().max()) + 1e-6
        assert torch.allclose(found[name].to(high), expected[name], atol=0.05 * scale)
        assert torch.allclose(single[name].to(high), expected[name][0], atol=0.05 * scale)
