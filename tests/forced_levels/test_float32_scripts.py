"""``run --opt-level`` on float32 scripts without Apex: as the same script with ``amp`` written in by hand."""

import copy

import pytest
import torch
from amp_by_hand import assert_equal, backward, begin, both
from helpers.half_kernels import convolves_in
from torch import nn
from torch.nn import functional

import ampcompat
from ampcompat import amp
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1"),
    pytest.mark.usefixtures("quiet"),
]


def convolutional():
    """Return a small network with batch norm."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)]
    return nn.Sequential(*layers)


class Script:
    """A training loop as scripts have it, with ``amp`` written in (``level``), or without (None)."""

    def __init__(self, level=None, seed=0):
        torch.manual_seed(seed)
        self.level, self.losses = level, []
        self.model = convolutional()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        begin(level, self.model, self.optimizer)

    def loss(self, index):
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(4, 3, 8, 8, generator=generator)
        loss = functional.cross_entropy(self.model(inputs), torch.arange(4))
        return loss * 2.0**20 if index == 2 else loss  # overflows float16

    def train(self, steps, clips=True, first=0):
        for index in range(first, first + steps):
            self.optimizer.zero_grad()
            loss = self.loss(index)
            backward(self.level, loss, self.optimizer)
            if clips:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.losses.append(loss.detach())
        return self

    def result(self):
        """Return losses, weights and the optimizer's state as a list of tensors."""
        found = self.losses + list(copy.deepcopy(self.model.state_dict()).values())
        return found + [value for each in self.optimizer.state.values() for value in each.values()]


@pytest.mark.parametrize("clips", [True, False])
def test_a_script_gives_what_it_gives_with_amp_written_in_bit_for_bit(level, clips):
    assert_equal(*both(level, lambda hand: Script(hand).train(5, clips).result()))


def test_at_o0_a_script_gives_what_it_gives_unchanged_bit_for_bit():
    expected = Script().train(5).result()
    with forced("O0"):
        assert_equal(Script().train(5).result(), expected)


def test_the_weights_are_those_of_the_level_and_the_checkpoint_is_float32(level):
    with forced(level):
        script = Script().train(1)
        policy = record_of(script.optimizer).configuration.policy
        assert script.model[4].weight.dtype is (policy.weights_dtype or torch.float32)
        assert {each.dtype for each in script.model.state_dict().values() if each.is_floating_point()} == {
            torch.float32
        }


def test_everything_is_as_before_when_it_ends(level):
    with forced(level):
        script = Script().train(2)
    assert record_of(script.optimizer) is None
    assert all(param.dtype is torch.float32 for param in script.model.parameters())


def test_a_checkpoint_loaded_before_the_first_forward_pass_counts(level):
    saved = Script(seed=1).model.state_dict()

    def run(hand):
        script = Script(hand)
        script.model.load_state_dict(saved)
        return script.train(2).result()

    assert_equal(*both(level, run))


def test_a_forward_pass_without_gradients_prepares_nothing(level):
    with forced(level):
        script = Script()
        with torch.no_grad():
            script.model(torch.ones(1, 3, 8, 8))
        assert record_of(script.optimizer) is None
        script.train(1)
        assert record_of(script.optimizer) is not None


def test_gradients_are_true_ones_after_backward_and_add_up(level):
    def run(hand):
        script = Script(hand)
        for index in (0, 1):
            backward(hand, script.loss(index), script.optimizer)
        return [param.grad.clone() for param in script.model.parameters()]

    assert_equal(*both(level, run))


@pytest.mark.skipif(not convolves_in(torch.float16), reason="this torch lacks kernels in float16 on a CPU")
def test_a_step_that_overflows_is_skipped_and_schedulers_are_quiet():
    with forced("O1"):
        script = Script()
        scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, 1)
        for index in (0, 2, 3):
            script.train(1, first=index)
            scheduler.step()
            assert amp.step_was_skipped(script.optimizer) is (index == 2)


def test_gradients_of_inputs_are_true_ones_and_add_up():
    inputs = torch.ones(2, 3, requires_grad=True)
    with forced("O1"):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            (model(inputs).sum() * 2.0**-8).backward()  # 2**16, the first scale, would overflow
        assert record_of(optimizer) is not None
    weight = model.weight.detach().half().float()
    assert torch.equal(inputs.grad, 2.0**-7 * weight.expand(2, 3))


def test_autograd_grad_is_left_alone():
    inputs = torch.ones(2, 3, requires_grad=True)
    with forced("O1"):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs)
        assert record_of(optimizer) is not None
    assert torch.equal(gradient, model.weight.detach().half().float().expand(2, 3))


def test_backward_of_several_losses_and_of_given_gradients(level):
    def run(gradient):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * 2.0**8)
        model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
        output = model(torch.ones(1, 3))
        torch.autograd.backward([output.sum() * 2.0**-8, output], [None, torch.full((1, 2), gradient)])
        optimizer.step()
        return model.state_dict()["weight"]

    with forced(level):
        assert torch.equal(run(2.0**-7), torch.full((2, 3), 1 - 0.5 * 3.0))


def test_backward_of_listed_inputs_reaches_these_only():
    with forced("O2"):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (model(torch.ones(1, 3)).sum() * 2.0**-8).backward(inputs=[model.bias])
        assert record_of(optimizer) is not None
        assert model.weight.grad is None and model.bias.grad.tolist() == [2.0**-8]


def test_a_script_that_calls_initialize_is_left_alone(level):
    expected = Script("O1").train(3).result()
    ampcompat.reset()
    with forced(level) as each:
        assert_equal(Script("O1").train(3).result(), expected)
        assert each.session is None


def test_initialize_after_a_forward_pass_ends_what_was_prepared(level):
    with forced(level):
        script = Script()
        script.model(torch.ones(2, 3, 8, 8))
        assert record_of(script.optimizer) is not None
        script.level = "O1"
        amp.initialize(script.model, script.optimizer, opt_level="O1", verbosity=0)
        script.train(2)
        assert record_of(script.optimizer).configuration.policy.opt_level == "O1"


def test_models_without_an_optimizer_stay_as_they_are(level):
    with forced(level):
        teacher, script = convolutional(), Script()
        average = copy.deepcopy(script.model)
        script.train(1)
        with torch.no_grad():
            for other, param in zip(average.parameters(), script.model.parameters()):
                other.mul_(0.5).add_(param.float(), alpha=0.5)
        if level not in ("O1", "O4"):  # which cast torch's functions, whichever model calls them, as in Apex
            inputs = torch.ones(2, 3, 8, 8)
            assert teacher(inputs).dtype is average(inputs).dtype is torch.float32
        assert all(param.dtype is torch.float32 for each in (teacher, average) for param in each.parameters())
