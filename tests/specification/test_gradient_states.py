"""Random sequences of what scripts do between two steps, against ``gradient_scale.HeldGradients``.

See ``helpers.sequences`` for how many.
"""

import copy

import pytest
import torch
from helpers import loops
from helpers.gradient_states import HeldGradients, StaticScale, change
from helpers.networks import ScaleReference, holds_nonzero, settings_at
from helpers.networks import initialize as initialize_amp
from helpers.sequences import FACTOR, NAMES, Linears, SessionMachine, rare, run_sequences, subsets
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from ampcompat import amp

#: Inputs whose gradients are multiples of 2**-6, all of whose sums fit into half; and one whose sums with them do not.
COARSE, FINE = 2.0**-2, 2.0**-12
SCALES = {
    "default": {},
    "dynamic": {"loss_scale": "dynamic"},
    "static": {"loss_scale": 128.0},
}
WEIGHTS = [1.0, -0.5], [0.25, 2.0], [-1.0, 0.5]
LIMITS = dict(growth_interval=3, min_loss_scale=2.0**4, max_loss_scale=2.0**16)
small = st.sampled_from([-3, -2, -1, 1, 2, 3])
each_loss = st.integers(0, 1)
some_optimizers = st.sampled_from([(0,), (1,), (0, 1)])


class Script(SessionMachine):
    """A script with two optimizers and two losses; the model by hand beside it."""

    @initialize(scale=st.sampled_from(sorted(SCALES)), is_shared=st.booleans())
    def begin(self, scale, is_shared):
        setting = self.setting
        self.is_shared = is_shared and not setting.has_masters
        owned = {0: ("a", "c"), 1: ("b", "c") if self.is_shared else ("b",)}
        self.model = Linears(WEIGHTS).to(setting.high)
        self.optimizers = [torch.optim.SGD([getattr(self.model, name) for name in owned[i]], lr=1.0) for i in (0, 1)]
        options = dict(LIMITS, num_losses=2, **SCALES[scale])
        initialize_amp(setting, self.model, self.optimizers, **options)
        kind = options.get("loss_scale", setting.policy.loss_scale)
        scales = [ScaleReference(3, 2.0**4, 2.0**16) if kind == "dynamic" else StaticScale(kind) for _ in range(2)]
        stored = setting.low if setting.level == "O3" else setting.high
        half = setting.low if setting.casts_weights else setting.high
        weights = {name: torch.tensor(values, dtype=torch.float64) for name, values in zip(NAMES, WEIGHTS)}
        self.expected = HeldGradients(weights, owned, scales, half, stored, stay_half=setting.stored)
        self.fine = {}  # optimizer -> whether the delayed gradients that it holds are fine ones
        self.has_plain = False  # a pass without a block may have left gradients that masters do not have yet

    # -- passes --------------------------------------------------------------------------------------------------------

    def loss(self, gradients, model=None):
        """Return the loss with these gradients."""
        inputs = {name: (values / FACTOR).to(self.setting.high).view(1, 2) for name, values in gradients.items()}
        return FACTOR * (model or self.model)(inputs).sum()

    def gradients(self, names, numbers, is_fine):
        """Return name -> the gradient of a pass."""
        unit = FACTOR * (FINE if is_fine else COARSE)
        pairs = zip(names, [numbers, numbers[::-1], [numbers[0], numbers[0]]])
        return {name: torch.tensor(pair, dtype=torch.float64) * unit for name, pair in pairs}

    def names(self, optimizers, wanted):
        """Return the params of these optimizers that are wanted, or all of them."""
        owned = sorted(set().union(*[self.expected.owned[each] for each in optimizers]))
        return [name for name in owned if name in wanted] or owned

    def allowed(self, optimizers):
        """Return optimizers for a block, these and those that must come with them; None if there can be none now."""
        expected, found = self.expected, set((0, 1) if self.is_shared else optimizers)
        for each in expected.delayed:
            found |= each.optimizers if each.optimizers & found else set()
        return tuple(sorted(found)) if all(expected.is_clean(each) for each in found) else None

    def run(self, loss, optimizers, passes, overflows, **options):
        """Do one block with these backward passes."""
        with amp.scale_loss(self.loss(passes[0]), self.given(optimizers), loss_id=loss, **options) as scaled_loss:
            scale = self.expected.scales[loss].scale
            (scaled_loss * (float("inf") if overflows else 1.0)).backward()
            for gradients in passes[1:]:
                (self.loss(gradients) * scale).backward()

    def given(self, optimizers):
        made = [self.optimizers[each] for each in optimizers]
        return made[0] if len(made) == 1 else made

    def begin_pass(self, loss, optimizers, names, numbers, is_fine, count):
        """Enter a block by hand; return its backward passes, all of the fineness of what they are added to in half."""
        held = {self.fine[each] for each in optimizers if self.expected.is_delayed(each)}
        is_fine = is_fine and self.setting.level != "O3"
        is_fine = held.pop() if held else is_fine
        self.expected.enter(loss, optimizers)
        names = self.names(optimizers, names)
        self.fine.update({each: is_fine for each in optimizers})
        return [self.gradients(names, numbers[index:] + numbers[:index], is_fine) for index in range(count)]

    @precondition(lambda self: self.expected.unchecked is None)
    @rule(
        loss=each_loss,
        optimizers=some_optimizers,
        names=subsets,
        numbers=st.lists(small, min_size=2, max_size=2),
        is_fine=st.booleans(),
        count=st.integers(1, 3),
        overflows=rare,
        kind=st.sampled_from(["leave", "leave", "leave_delayed", "leave_unchecked"]),
    )
    def block(self, loss, optimizers, names, numbers, is_fine, count, overflows, kind):
        optimizers = self.allowed(optimizers)
        if optimizers is None:
            return
        if kind == "leave_unchecked" and any(self.expected.is_delayed(each) for each in optimizers):
            kind = "leave"
        overflows = overflows and self.expected.can_overflow
        passes = self.begin_pass(loss, optimizers, names, numbers, is_fine, count)
        options = {"leave_delayed": {"delay_unscale": True}, "leave_unchecked": {"delay_overflow_check": True}}
        self.run(loss, optimizers, passes, overflows, **options.get(kind, {}))
        for index, gradients in enumerate(passes):
            self.expected.add(gradients, overflows and index == 0)
        getattr(self.expected, kind)(loss, optimizers, list(passes[0]), overflows)
        self.compare_scales()

    @precondition(lambda self: self.expected.unchecked is not None)
    @rule(numbers=st.lists(small, min_size=2, max_size=2), names=subsets)
    def block_that_checks_the_pass_before(self, numbers, names):
        loss, optimizers = self.expected.unchecked
        passes = self.begin_pass(loss, optimizers, names, numbers, False, 1)
        self.run(loss, optimizers, passes, False)
        self.expected.add(passes[0])
        self.expected.leave(loss, optimizers, list(passes[0]), False)
        self.compare_scales()

    @precondition(lambda self: self.expected.unchecked is None and not self.expected.delayed)
    @rule(
        loss=each_loss,
        optimizers=some_optimizers,
        names=subsets,
        numbers=st.lists(small, min_size=2, max_size=2),
        overflow_of=st.sampled_from([None, None, None, 0, 1]),
        inner_first=st.booleans(),
    )
    def nested_blocks(self, loss, optimizers, names, numbers, overflow_of, inner_first):
        optimizers = self.allowed(optimizers)
        if optimizers is None:
            return
        overflow_of = overflow_of if self.expected.can_overflow else None
        passes = self.begin_pass(loss, optimizers, names, numbers, False, 2)
        factors = [float("inf") if overflow_of == index else 1.0 for index in (0, 1)]
        with amp.scale_loss(self.loss(passes[0]), self.given(optimizers), loss_id=loss) as outer:
            with amp.scale_loss(self.loss(passes[1]), self.given(optimizers), loss_id=loss) as inner:
                if not inner_first:
                    (outer * factors[0]).backward()
                (inner * factors[1]).backward()
            if inner_first:
                (outer * factors[0]).backward()
        for index, gradients in enumerate(passes):
            self.expected.add(gradients, overflow_of == index)
        self.expected.leave(loss, optimizers, list(passes[0]), overflow_of is not None)
        self.compare_scales()

    @precondition(lambda self: not (self.expected.unchecked or self.expected.delayed or self.expected.foreign))
    @rule(loss=each_loss, names=subsets, numbers=st.lists(small, min_size=2, max_size=2), to_none=st.booleans())
    def block_that_clears_the_model_before_its_backward_pass(self, loss, names, numbers, to_none):
        expected = self.expected
        if expected.changed_masters or expected.skipped:
            return
        if self.setting.level == "O3" and expected.scales[loss].scale != 1.0:
            return  # earlier gradients are set aside until the block ends
        passes = self.begin_pass(loss, (0, 1), names, numbers, False, 1)
        with amp.scale_loss(self.loss(passes[0]), self.optimizers, loss_id=loss) as scaled_loss:
            clear_model(self.model, to_none)
            scaled_loss.backward()
        expected.clear(NAMES)
        expected.stepped.clear()
        expected.add(passes[0])
        expected.leave(loss, (0, 1), list(passes[0]), False)
        self.compare_scales()

    @precondition(lambda self: self.expected.unchecked is None and not self.is_shared)
    @rule(loss=each_loss, optimizer=st.integers(0, 1), numbers=st.lists(small, min_size=2, max_size=2))
    def block_whose_loss_reaches_the_other_optimizer(self, loss, optimizer, numbers):
        optimizers, expected = (optimizer,), self.expected
        if self.allowed(optimizers) != optimizers or expected.is_delayed(1 - optimizer):
            return
        if not expected.is_clean(1 - optimizer) or not all(map(expected.is_exact, expected.owned[1 - optimizer])):
            return
        passes = self.begin_pass(loss, optimizers, NAMES, numbers, False, 1)
        passes[0].update(self.gradients(expected.owned[1 - optimizer], numbers, False))
        self.run(loss, optimizers, passes, False)
        expected.add(passes[0])
        expected.leave(loss, optimizers, list(passes[0]), False)
        self.compare_scales()

    @precondition(lambda self: self.expected.unchecked is None)
    @rule(names=subsets, numbers=st.lists(small, min_size=2, max_size=2))
    def plain_backward(self, names, numbers):
        gradients = self.gradients(sorted(names), numbers, False)
        touched = set().union(*[self.expected.owners(name) for name in gradients])
        if not all(self.expected.is_clean(each) and not self.expected.is_delayed(each) for each in touched):
            return
        if touched & self.expected.changed_masters or not all(map(self.expected.is_exact, gradients)):
            return
        owners = [each for name in self.expected.left_in_half & names for each in self.expected.owners(name)]
        if any(map(self.fine.get, owners)):
            return
        self.loss(gradients).backward()
        self.has_plain = True
        self.expected.add(gradients)

    # -- reading and changing gradients --------------------------------------------------------------------------------

    @precondition(lambda self: any(map(self.expected.is_readable, NAMES)))
    @rule()
    def read_gradients(self):
        for name in filter(self.expected.is_readable, NAMES):
            found, expected = getattr(self.model, name).grad, self.expected.grads[name]
            if expected is None:
                assert found is None or not holds_nonzero(found), "there is no gradient of " + name
            else:
                assert found is not None, f"the gradient of {name} is {expected}"
                assert found.dtype is self.expected.half
                assert torch.equal(found.detach()[0].double(), expected.to(found.dtype).double()), name

    @precondition(lambda self: any(map(self.expected.is_readable, NAMES)))
    @rule(
        names=subsets,
        how=st.sampled_from(["halve", "halve a copy", "mask", "mask data", "add", "replace", "remove", "clip"]),
    )
    def change_gradients(self, names, how):
        expected = self.expected
        for name in sorted(names):
            grad = expected.grads[name]
            if expected.is_readable(name) and grad is not None and expected.is_exact(name, 2.0**-5):
                if how.startswith("halve") and not torch.equal((grad * 2.0**7).round(), grad * 2.0**7):
                    continue  # a bit more would be needed at every call
                by_hand = torch.nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
                by_hand.grad = grad.clone().view(1, 2)
                for param in (by_hand, getattr(self.model, name)):
                    change(param, how)
                expected.change(name, None if by_hand.grad is None else by_hand.grad[0])

    @precondition(lambda self: self.expected.unchecked is None)
    @rule(
        optimizer=st.integers(0, 1),
        limit=st.sampled_from([2.0**-6, 2.0**-5]),
        through_data=st.booleans(),
        of_groups=st.booleans(),
    )
    def clip_master_params(self, optimizer, limit, through_data, of_groups):
        expected, names = self.expected, self.expected.owned[optimizer]
        others = set().union(*[expected.owners(name) for name in names])
        if expected.not_finite.intersection(names) or any(map(expected.is_delayed, others)):
            return
        if not all(map(expected.is_clean, others)) or all(expected.grads[name] is None for name in names):
            return  # torch's own function cannot clip nothing
        if of_groups and not self.has_plain:
            params = self.optimizers[optimizer].param_groups[0]["params"]
        else:
            params = list(amp.master_params(self.optimizers[optimizer]))
        if through_data:  # as ``clip_grad_value_`` did before torch 2.1
            for grad in [param.grad for param in params if param.grad is not None]:
                grad.data.clamp_(-limit, limit)
        else:
            torch.nn.utils.clip_grad_value_(params, limit)
        for name in names:
            if expected.grads[name] is not None:
                expected.change(name, expected.grads[name].clamp(-limit, limit))
        expected.changed_masters |= others

    @precondition(lambda self: self.expected.unchecked is None)
    @rule(optimizer=st.integers(0, 1), to_none=st.sampled_from([None, True, False]))
    def zero_grad(self, optimizer, to_none):
        options = {} if to_none is None else {"set_to_none": to_none}
        self.optimizers[optimizer].zero_grad(**options)
        self.expected.zero_grad(optimizer)

    @precondition(lambda self: self.expected.unchecked is None and not self.expected.delayed)
    @rule(to_none=st.sampled_from([None, True, False]))
    def zero_grad_of_the_model(self, to_none):
        if self.expected.changed_masters:
            return
        if self.expected.foreign and self.setting.has_masters and not to_none:
            return  # nobody can tell what is added to zeros in place from what is added to scaled gradients
        if to_none is None:
            self.model.zero_grad()
        else:
            clear_model(self.model, to_none)
        self.expected.clear(NAMES)
        self.expected.stepped.clear()
        self.has_plain = False

    # -- steps and copies ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.expected.unchecked is None)
    @rule(optimizer=st.integers(0, 1))
    def step(self, optimizer):
        if not self.expected.is_clean(optimizer):
            return
        if self.expected.is_delayed(optimizer):
            with pytest.raises(RuntimeError, match="delay_unscale"):
                self.optimizers[optimizer].step()
        else:
            self.optimizers[optimizer].step()
            assert amp.step_was_skipped(self.optimizers[optimizer]) == self.expected.step(optimizer)
        self.compare_weights()

    @precondition(lambda self: not (self.expected.unchecked or self.expected.delayed or self.expected.skipped))
    @rule(goes_on_with_copy=st.booleans(), numbers=st.lists(small, min_size=2, max_size=2))
    def copy_model_and_optimizers(self, goes_on_with_copy, numbers):
        twin_model, twins = copy.deepcopy((self.model, self.optimizers))
        if goes_on_with_copy:
            self.model, self.optimizers = twin_model, twins
            self.expected.forget()
            return
        gradients = self.gradients(NAMES, numbers, False)
        loops.backward(self.loss(gradients, twin_model), twins)
        self.expected.scales[0].update(False)
        for twin in twins:
            twin.step()
        self.compare_weights()

    def compare_weights(self):
        for optimizer, twin in enumerate(self.optimizers):
            (group,) = twin.param_groups
            for name, param in zip(self.expected.owned[optimizer], group["params"]):
                weight = self.expected.weights[name]
                assert torch.equal(param.detach()[0].double(), weight), name
                in_model = getattr(self.model, name).detach()[0]
                assert torch.equal(in_model, weight.to(in_model.dtype)), name

    def compare_scales(self):
        found = [(state["loss_scale"], state["unskipped"]) for state in amp.state_dict().values()]
        expected = [(each.scale, each.unskipped) for each in self.expected.scales]
        assert [scale for scale, _ in found] == [scale for scale, _ in expected]
        if self.expected.can_overflow:
            assert found == expected


def clear_model(model, to_none):
    """Do as ``model.zero_grad(set_to_none)``, which torch before 1.7 has not."""
    for param in model.parameters():
        if to_none:
            param.grad = None
        elif param.grad is not None:
            param.grad.detach_().zero_()


COUNT_OF_SETTINGS = 6


@settings_at("O0", "O1", "O2", "O3", "O5", stored=True)
def test_random_sequences_agree_with_the_model_by_hand(setting):
    run_sequences(Script, setting, settings_of_test=COUNT_OF_SETTINGS)


# -- cases that it has found ------------------------------------------------------------------------------------------


def shared(setting, **options):
    """Return a model, and two optimizers of which the second has one param of the first too."""
    model = Linears(WEIGHTS).to(setting.high)
    optimizers = [torch.optim.SGD(params, lr=1.0) for params in ([model.a, model.c], [model.b, model.c])]
    initialize_amp(setting, model, optimizers, **options)
    return model, optimizers


def reach(setting, model, optimizers, names, factor=1.0, **options):
    """Do one block whose loss reaches these params, with gradients of ``FACTOR * factor``."""
    inputs = {name: torch.ones(1, 2, dtype=setting.high) for name in names}
    loops.backward(FACTOR * factor * model(inputs).sum(), optimizers, **options)


@settings_at("O0", "O1", "O3")
@pytest.mark.parametrize("order", [1, -1])
def test_a_gradient_of_a_shared_param_that_a_later_loss_does_not_reach_keeps_its_value(setting, order, session):
    model, optimizers = shared(setting, loss_scale=128.0)
    reach(setting, model, optimizers[::order], "abc")
    reach(setting, model, optimizers[::order], "ab")
    assert [getattr(model, name).grad.tolist()[0] for name in "abc"] == [[2 * FACTOR] * 2] * 2 + [[FACTOR] * 2]


@settings_at("O0", "O1", "O3")
@pytest.mark.parametrize("order", [1, -1])
def test_an_overflow_in_a_shared_param_is_none_of_a_later_loss(setting, order, session):
    model, optimizers = shared(setting, loss_scale="dynamic")
    reach(setting, model, optimizers[::order], "abc", float("inf"))
    reach(setting, model, optimizers[::order], "ab")
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 1}
    for optimizer in optimizers:
        optimizer.step()
        assert amp.step_was_skipped(optimizer)


@settings_at("O0", "O1", "O3")
@pytest.mark.parametrize("cleared", [0, 1])
def test_zero_grad_of_one_optimizer_between_delayed_passes_clears_the_shared_param(setting, cleared, session):
    model, optimizers = shared(setting, loss_scale=128.0)
    reach(setting, model, optimizers, "abc")
    reach(setting, model, optimizers, "ab", delay_unscale=True)
    optimizers[cleared].zero_grad()
    reach(setting, model, optimizers, "ab")
    for name, factor in {"ab"[cleared]: 1.0, "ab"[1 - cleared]: 3.0, "c": 0.0}.items():
        grad = getattr(model, name).grad
        assert (0.0 if grad is None else grad.max()) == factor * FACTOR, name


@settings_at("O2", "O5")
def test_a_gradient_that_the_models_zero_grad_has_removed_is_not_shown_again(setting, session):
    model, optimizers = shared(setting, loss_scale=128.0)
    reach(setting, model, optimizers, "ab")
    model.zero_grad()
    assert [param.grad is None or not holds_nonzero(param.grad) for param in model.parameters()] == [True] * 3
