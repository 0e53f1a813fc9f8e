"""LARC against its formula in float64, and as an optimizer that amp and schedulers take."""

import math
import pickle
import warnings

import pytest
import torch
from helpers import loops
from helpers.dispatched import Watch
from helpers.precision import IS_STAND_IN, low_of

from ampcompat import amp
from ampcompat.apex.parallel import LARC
from ampcompat.support.torch_compat import features

RATES = (0.5, 0.01)
DECAYS = (0.1, 0.0)


def make_params(dtype=torch.float64):
    """Return two groups of params; one of them is zero, one has a zero gradient, one has none."""
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(5)]
    values[1].zero_()
    params = [torch.nn.Parameter(value.to(dtype)) for value in values]
    for index, param in enumerate(params[:4]):
        param.grad = (0 if index == 2 else 1) * torch.randn(3, 4, generator=generator, dtype=torch.float64).to(dtype)
    return params[:3], params[3:]


def make_sgd(groups, **keywords):
    entries = [
        {"params": params, "lr": rate, "weight_decay": decay} for params, rate, decay in zip(groups, RATES, DECAYS)
    ]
    return torch.optim.SGD(entries, lr=1.0, **keywords)


def norm(tensor):
    return math.sqrt(sum(value * value for value in tensor.detach().double().flatten().tolist()))


def expected_step(param, rate, decay, trust, clip, eps):
    """Return the param after one step of LARC over plain SGD: the published formula, in Python's floats."""
    if param.grad is None:
        return param.detach().double()
    weight, grad = norm(param), norm(param.grad)
    gradient = param.grad.double()
    if weight and grad:
        adapted = trust * weight / (grad + decay * weight + eps)
        if clip:
            adapted = min(adapted / rate, 1.0) if rate else 1.0
        gradient = (gradient + decay * param.detach().double()) * adapted
    return param.detach().double() - rate * gradient


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("trust", [0.02, 5.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_step_follows_the_formula(dtype, trust, clip):
    if IS_STAND_IN and dtype in (torch.float16, torch.bfloat16):
        pytest.skip("this torch has no half arithmetic on the CPU")
    groups = make_params(dtype)
    expected = [
        expected_step(param, rate, decay, trust, clip, 1e-8)
        for params, rate, decay in zip(groups, RATES, DECAYS)
        for param in params
    ]
    LARC(make_sgd(groups), trust_coefficient=trust, clip=clip).step()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 8 * torch.finfo(dtype).eps)
    for param, want in zip(groups[0] + groups[1], expected):
        assert param.dtype is dtype
        assert (param.detach().double() - want).abs().max() <= tolerance * 3


def test_a_learning_rate_of_zero_changes_nothing_and_is_finite():
    groups = make_params()
    before = [param.detach().clone() for param in groups[0]]
    optimizer = LARC(make_sgd(groups))
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(param.detach(), old) for param, old in zip(groups[0], before))
    assert all(torch.isfinite(param.grad).all() for param in groups[0])


def test_the_wrapped_optimizer_sees_no_weight_decay_and_gets_it_back():
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([group["weight_decay"] for group in self.param_groups])
            raise KeyError("stop")

    optimizer = LARC(Watched(make_params()[0], lr=0.1, weight_decay=0.25))
    with pytest.raises(KeyError):
        optimizer.step()
    assert seen == [[0]] and optimizer.param_groups[0]["weight_decay"] == 0.25


def test_a_closure_is_evaluated_once_before_the_gradients_are_rescaled():
    param = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = LARC(torch.optim.SGD([param], lr=1.0), trust_coefficient=0.25, clip=False, eps=0.0)
    calls = []

    def closure():
        calls.append(param.item())
        optimizer.zero_grad()
        loss = (param * 4).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 8.0
    assert calls == [2.0] and param.item() == 2.0 - 0.25 * 2.0 / 4.0 * 4.0


def test_it_is_what_it_wraps_to_everybody_who_asks():
    groups = make_params()
    inner = make_sgd(groups)
    optimizer = LARC(inner)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    assert optimizer.state_dict() == inner.state_dict() and optimizer.defaults is inner.defaults
    optimizer.load_state_dict(make_sgd(make_params(), momentum=0.9).state_dict())
    assert [group["momentum"] for group in inner.param_groups] == [0.9] * len(groups)
    assert optimizer.param_groups is inner.param_groups
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert len(inner.param_groups) == 3
    optimizer.zero_grad()
    assert all(param.grad is None or not param.grad.abs().sum() for params in groups for param in params)
    with pytest.raises(AttributeError, match="no_such"):
        optimizer.no_such
    assert "SGD" in repr(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 1.5 would rather have torch.save called
        clone = pickle.loads(pickle.dumps(optimizer))
    assert clone.clip is optimizer.clip and len(clone.param_groups) == 3


def test_schedulers_take_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = LARC(make_sgd(make_params()))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer.step()
        scheduler.step()
    assert optimizer.optim.param_groups[0]["lr"] == RATES[0] / 2


def train(level, wrap, steps=6):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = wrap(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5, weight_decay=1e-2))
    net, optimizer = amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale=8.0)
    inputs = torch.randn(64, 4)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(inputs).double() - inputs.double().sum(1, keepdim=True)).pow(2).mean()
        loops.step(loss, optimizer)
        losses.append(loss.item())
    return losses


def larc(optimizer):
    return LARC(optimizer, trust_coefficient=0.1)


def test_it_trains_at_every_level_as_at_o0(level):
    import ampcompat

    reference = train("O0", larc)
    ampcompat.reset()
    losses = train(level, larc)
    assert losses[-1] < 0.7 * losses[0]
    tolerance = 1e-5 if level == "O0" else 20 * torch.finfo(low_of(level)).eps
    assert losses == pytest.approx(reference, rel=tolerance)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_it_may_also_wrap_what_initialize_returned(level):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    net, inner = amp.initialize(
        net, torch.optim.SGD(net.parameters(), lr=0.5), opt_level=level, verbosity=0, loss_scale="dynamic"
    )
    optimizer = LARC(inner)
    masters = list(amp.master_params(optimizer))
    for factor in (1.0, float("inf")):
        before = [master.detach().clone() for master in masters]
        optimizer.zero_grad()
        loops.step(net(torch.ones(4, 3)).double().mean() * 0.25 * factor, optimizer)
        changed = any(not torch.equal(old, master) for old, master in zip(before, masters))
        assert changed == (factor == 1.0)
    assert amp.step_was_skipped(optimizer)


def calls_of_a_step(count, dtype):
    params = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(count)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = LARC(torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1))
    with torch.no_grad(), Watch() as watch:
        optimizer._rescale(optimizer.param_groups[0])
    return watch


@pytest.mark.skipif(not hasattr(torch, "_foreach_max"), reason="this torch has no foreach for all of it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_number_of_operations_does_not_grow_with_the_number_of_params(dtype):
    few, many = calls_of_a_step(4, dtype), calls_of_a_step(40, dtype)
    if dtype is torch.float16 and not features.foreach_norm_takes(2, True):
        pytest.skip("this torch has no float32 norms of half tensors in one operation")
    assert few.calls == many.calls and many.reads == 0


def test_sparse_gradients_are_rescaled_by_their_values():
    torch.manual_seed(0)
    tables = [torch.nn.Embedding(5, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table in tables:
        table(torch.tensor([1, 3, 1])).pow(2).sum().backward()
        LARC(torch.optim.SGD(table.parameters(), lr=0.5), clip=False).step()
    assert torch.allclose(tables[0].weight, tables[1].weight)
