"""Steps chunk by chunk (``store_param_remainders=True``): an optimizer steps once, or is refused before any change."""

import pytest
import torch
from helpers import fused_optimizers, half_kernels, loops

import ampcompat
from ampcompat import amp
from ampcompat.apex import optimizers as fused
from ampcompat.engine.masters import remainder_chunk, remainder_master
from ampcompat.engine.optimizers import chunked_step
from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import features

if half_kernels.stand_in() or not features.is_version_within(oldest=remainder_master.OLDEST):
    pytest.skip("this torch has no bfloat16 arithmetic, or cannot store masters", allow_module_level=True)


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """Let the small networks of these tests have more than one chunk."""
    monkeypatch.setattr(remainder_chunk, "FEWEST", 12)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def train(make_optimizer, steps=3, closure=False, **options):
    """Return what ``make_optimizer`` has made, what its steps have returned, and the weights."""
    with ampcompat.session():
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, **options)
        returned = []

        def evaluate():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).float().sum()
            loops.backward(loss, optimizer)
            return loss

        for _ in range(steps):
            if closure:
                returned.append(float(optimizer.step(evaluate)))
            else:
                evaluate()
                returned.append(optimizer.step())
        return optimizer, returned, model.state_dict()


class Counting(torch.optim.SGD):
    """Has counts of its own: of steps, in an attribute and in its groups."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.count, self.seen = 0, set()

    def step(self, closure=None):
        """Count the step, then do it."""
        self.count += 1
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            self.seen.update(map(id, group["params"]))
        return super().step(closure)


def test_a_step_counts_once_however_many_chunks_it_has():
    optimizer, _, _ = train(Counting, store_param_remainders=True)
    assert (optimizer.count, [group["count"] for group in optimizer.param_groups]) == (3, [3])


def test_the_closure_is_evaluated_once_and_its_loss_is_returned():
    found, expected = [train(Counting, closure=True, store_param_remainders=each) for each in (True, False)]
    assert found[1] == expected[1]
    assert all(torch.equal(value, expected[2][name]) for name, value in found[2].items())


class OfPlainTensors(torch.optim.SGD):
    """Steps by a kernel that takes tensors as they are, as those of extensions."""

    def step(self, closure=None):
        """Step; every param has its value."""
        loss = closure() if closure is not None else None
        params = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        assert all(type(param) in (torch.Tensor, torch.nn.Parameter) for param in params)
        super().step()
        return loss


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_meets_values_only_also_where_its_closure_is_the_first_pass(closure):
    train(lambda params: OfPlainTensors(params, lr=0.1), closure=closure, store_param_remainders=True)


@pytest.mark.skipif(not hasattr(torch.optim.Optimizer, "register_step_pre_hook"), reason="this torch has no such hooks")
def test_hooks_of_a_step_are_called_once_and_see_all_params():
    calls = []

    def make(params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.register_step_pre_hook(lambda own, *_: calls.append(len(own.param_groups[0]["params"])))
        optimizer.register_step_post_hook(lambda own, *_: calls.append(-len(own.param_groups[0]["params"])))
        return optimizer

    train(make, store_param_remainders=True)
    assert calls == [6, -6] * 3


def test_a_step_that_raises_gives_the_optimizer_its_groups_back():
    def step(self, closure=None):
        torch.optim.SGD.step(self, closure)
        if isinstance(self.fails, list):
            self.fails.append(len(self.param_groups[0]["params"]))
            raise ValueError("in a step")

    kind = type("Failing", (torch.optim.SGD,), {"step": step, "fails": None})
    with ampcompat.session():
        model = make_model()
        optimizer = kind(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, store_param_remainders=True)
        optimizer.fails = []
        loops.backward(model(torch.ones(1, 3)).float().sum(), optimizer)
        before = model.state_dict()
        with pytest.raises(ValueError, match="in a step"):
            optimizer.step()
        assert optimizer.fails[0] < 6 and len(optimizer.param_groups[0]["params"]) == 6
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert 0 < len(changed) < 6


class GlobalNorm(torch.optim.SGD):
    """Clips the gradients of all params together, as the original LAMB."""

    def step(self, closure=None):
        """Clip, then step."""
        for group in self.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)


class StepsOfAll(torch.optim.SGD):
    """Has state that belongs to no param."""

    def step(self, closure=None):
        """Count the steps in the state."""
        self.state["steps"] = (self.state["steps"] or 0) + 1
        return super().step(closure)


REFUSED = {
    "LBFGS": (lambda params: torch.optim.LBFGS(params, lr=0.1), "the step of LBFGS needs a closure"),
    "FusedLAMB": (lambda params: fused.FusedLAMB(params), "step of FusedLAMB depends on all of them"),
    "a norm over all params": (lambda params: GlobalNorm(params, lr=0.1), "step of GlobalNorm depends on all"),
    "state of all params": (lambda params: StepsOfAll(params, lr=0.1), "step of StepsOfAll depends on all"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_an_optimizer_whose_step_depends_on_all_params_is_refused_before_anything_changes(name):
    make, message = REFUSED[name]
    model = make_model()
    optimizer = make(model.parameters())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state, groups = dict(optimizer.state), [dict(group) for group in optimizer.param_groups]
    with pytest.raises(AmpError, match=message):
        amp.initialize(model, optimizer, opt_level="O5", store_param_remainders=True)
    assert all(param.dtype is torch.float32 for param in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert dict(optimizer.state) == state and [dict(group) for group in optimizer.param_groups] == groups


def test_the_trial_changes_neither_the_optimizer_nor_random_numbers():
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    expected = optimizer.state_dict()
    before = {key: {name: value.clone() for name, value in each.items()} for key, each in expected["state"].items()}
    numbers = torch.get_rng_state()
    chunked_step.check(optimizer)
    assert torch.equal(torch.get_rng_state(), numbers)
    found = optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    for key, each in found["state"].items():
        assert all(torch.equal(value, before[key][name]) for name, value in each.items())


@pytest.mark.skipif(fused_optimizers.why_not("SGD") is not None, reason="this torch has no fused SGD on the CPU")
def test_a_group_is_added_while_a_param_of_another_is_frozen():
    with ampcompat.session():
        first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        first.bias.requires_grad_(False)
        model = torch.nn.Sequential(first, second)
        optimizer = torch.optim.SGD(first.parameters(), lr=0.01, momentum=0.9, fused=True)
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, store_param_remainders=True)
        before = second.weight.detach().clone()
        for step in range(3):
            if step == 1:
                optimizer.add_param_group({"params": second.parameters()})
            optimizer.zero_grad()
            loops.step(model(torch.ones(2, 3)).pow(2).mean(), optimizer)
        assert len(optimizer.param_groups) == 2 and not torch.equal(second.weight, before)


class StepsInTrainMode(torch.optim.SGD):
    """Steps only after ``train()``, as schedule-free optimizers do."""

    is_training = False

    def train(self):
        self.is_training = True

    def step(self, closure=None):
        if not self.is_training:
            raise RuntimeError("not in train mode")
        return super().step(closure)


def test_an_optimizer_that_is_not_in_train_mode_yet_is_tried_in_it():
    optimizer = StepsInTrainMode(make_model().parameters(), lr=0.1)
    chunked_step.check(optimizer)
    assert not optimizer.is_training


def test_a_group_that_brings_in_a_dependence_is_refused_and_left_out():
    with ampcompat.session():
        model = make_model()
        optimizer = fused.FusedLAMB(model[:1].parameters(), max_grad_norm=0.0)
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, store_param_remainders=True)
        optimizer.defaults["max_grad_norm"] = optimizer.param_groups[0]["max_grad_norm"] = 1.0
        with pytest.raises(AmpError, match="depends on all of them"):
            optimizer.add_param_group({"params": model[1].parameters()})
        assert len(optimizer.param_groups) == 1
