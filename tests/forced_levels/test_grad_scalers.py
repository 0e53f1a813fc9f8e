"""The script's own ``GradScaler`` under a forced level: one scale, and one decision to skip a step."""

import pytest
import torch
from amp_by_hand import SMALL, assert_equal
from helpers import loops
from torch import nn

from ampcompat import amp
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.engine.session import process_state
from ampcompat.launch.forced_levels.forced_level import forced
from ampcompat.support.observer_interface import Observer

pytestmark = [
    pytest.mark.skipif(
        not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="before torch 2.3 GradScaler is for CUDA only"
    ),
    pytest.mark.usefixtures("quiet"),
]


class Script:
    """A loop with autocast and GradScaler."""

    def __init__(self, dtype=torch.float32, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.scaler = torch.amp.GradScaler("cpu", **options)
        self.skips = []

    def loss(self, factor=SMALL):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(torch.ones(2, 4)).float().sum() * factor

    def step(self, factor=SMALL, unscales=False):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(factor)).backward()
        if unscales:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skips.append(self.scaler.get_scale() < before)
        return self

    def by_hand(self, factor=SMALL, unscales=False):
        self.optimizer.zero_grad()
        loops.backward(self.model(torch.ones(2, 4)).float().sum() * factor, self.optimizer)
        if unscales:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.optimizer.step()

    def weights(self):
        return [each.clone() for each in self.model.state_dict().values()]


@pytest.mark.parametrize("unscales", [False, True])
def test_a_script_gives_what_it_gives_with_amp_written_in_bit_for_bit(level, unscales):
    script = Script(enabled=False)
    amp.initialize(script.model, script.optimizer, opt_level=level, verbosity=0)
    for factor in (SMALL, 2.0**20, SMALL):
        script.by_hand(factor, unscales)
    expected, is_dynamic = script.weights(), process_state.current().scalers[0].dynamic
    process_state.close_all()
    with forced(level):
        script = Script()
        for factor in (SMALL, 2.0**20, SMALL):
            script.step(factor, unscales)
        assert_equal(script.weights(), expected)
        assert script.skips == [False, is_dynamic, False]
        assert script.scaler.get_scale() == (2.0**15 if is_dynamic else 1.0)


def test_the_penalty_of_torchs_documentation_is_unscaled_once():
    with forced("O1"):
        script = Script()
        loss = script.loss()
        params = list(script.model.parameters())
        scaled = torch.autograd.grad(script.scaler.scale(loss), params, create_graph=True)
        gradients = [each / script.scaler.get_scale() for each in scaled]
        script.scaler.scale(loss + sum(each.pow(2).sum() for each in gradients)).backward()
        script.scaler.unscale_(script.optimizer)
        assert torch.equal(params[3].grad, torch.tensor([2 * SMALL]))


def test_what_is_computed_of_a_scaled_loss_is_unscaled_once(level):
    with forced(level):
        script = Script()
        for _ in range(2):
            (script.scaler.scale(script.loss()) / 2).backward()
        bias = script.model[2].bias
        assert torch.equal(bias.grad.float(), torch.tensor([2 * SMALL]))


def test_a_loss_scaled_before_another_one_overflows_is_unscaled_by_its_scale():
    with forced("O1"):
        script = Script()
        large, small = script.scaler.scale(script.loss(2.0**20)), script.scaler.scale(script.loss())
        large.backward()
        script.optimizer.zero_grad()
        small.backward()
        assert script.model[2].bias.grad.tolist() == [2 * SMALL]


def test_a_new_scale_and_options_of_the_script_are_those_of_the_level():
    with forced("O1"):
        script = Script(init_scale=512.0, growth_factor=4.0, growth_interval=2).step().step()
        assert script.scaler.get_scale() == 2048.0
        script.scaler.update(new_scale=64.0)
        assert script.scaler.get_scale() == 64.0 == process_state.current().scalers[0].loss_scale()


@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_new_scale_leaves_the_count_of_good_steps_as_torchs_scaler_does(level, overflows):
    counts = []
    for one in (None, level):
        with forced(one):
            script = Script(growth_interval=3).step().step()
            for factor, new_scale in ((2.0**30 if overflows else SMALL, 64.0), (SMALL, None), (SMALL, 8.0)):
                script.optimizer.zero_grad()
                script.scaler.scale(script.loss(factor)).backward()
                script.scaler.step(script.optimizer)
                script.scaler.update(new_scale)
                state = script.scaler.state_dict()
                counts.append((state["scale"], state["_growth_tracker"]))
    assert counts[:3] == counts[3:]
    assert counts[:3] == [(64.0, 2), (128.0, 0), (8.0, 0)]


def test_found_inf_is_where_trainers_read_it():
    with forced("O1"):
        script = Script()
        for factor, expected in ((SMALL, 0.0), (2.0**20, 1.0)):
            script.scaler.scale(script.loss(factor)).backward()
            script.scaler.unscale_(script.optimizer)
            found = script.scaler._per_optimizer_states[id(script.optimizer)]["found_inf_per_device"]
            assert [each.item() for each in found.values()] == [expected]
            script.scaler.step(script.optimizer)
            script.scaler.update()
            script.optimizer.zero_grad()


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("forced_level", [None, "O1", "O2"])
def test_a_gradient_that_the_script_makes_infinite_after_its_pass_skips_the_step(forced_level, unscales):
    with forced(forced_level):
        script = Script(init_scale=128.0).step()
        weights, gradient = script.weights(), script.model[0].weight
        script.optimizer.zero_grad()
        script.scaler.scale(script.loss()).backward()
        gradient.grad.data.fill_(float("inf"))  # as an all-reduce of the script's own does
        if unscales:
            script.scaler.unscale_(script.optimizer)
        script.scaler.step(script.optimizer)
        script.scaler.update()
        assert script.scaler.get_scale() == 64.0
        assert_equal(script.weights(), weights)
        script.step()
        assert not torch.equal(script.weights()[0], weights[0]) and torch.isfinite(script.weights()[0]).all()


def test_calls_in_a_wrong_order_raise_as_in_torch():
    with forced("O1"):
        script = Script()
        script.scaler.scale(script.loss()).backward()
        script.scaler.unscale_(script.optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            script.scaler.unscale_(script.optimizer)
        script.scaler.step(script.optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            script.scaler.step(script.optimizer)
        with pytest.raises(RuntimeError, match="after step"):
            script.scaler.unscale_(script.optimizer)


def test_a_state_dict_is_torchs_own_and_resumes(level):
    with forced(level):
        script = Script(init_scale=1024.0).step()
        saved = script.scaler.state_dict()
        is_dynamic = process_state.current().scalers[0].dynamic
    assert saved["scale"] == 1024.0 and saved["_growth_tracker"] == (1 if is_dynamic else 0)
    plain = torch.amp.GradScaler("cpu")
    plain.load_state_dict(saved)
    assert plain.get_scale() == 1024.0
    with forced(level):
        resumed = Script()
        resumed.scaler.load_state_dict(saved)
        resumed.step()
        if is_dynamic:
            assert resumed.scaler.get_scale() == 1024.0
            assert resumed.scaler.state_dict()["_growth_tracker"] == 2
            resumed.scaler.load_state_dict(saved)
            assert resumed.scaler.state_dict() == saved


class LossesTold(Observer):
    """Keeps what the observers of a session are told of its losses."""

    def __init__(self):
        self.losses = []

    def before_backward(self, backward):
        self.losses.append(backward.loss.item())


@pytest.mark.parametrize("divisor", [1, 4])
def test_observers_are_told_the_loss_before_the_scripts_scaler_multiplies_it(divisor, monkeypatch):
    told = LossesTold()
    monkeypatch.setattr(process_state, "observers", [told])
    with forced("O1"):
        script = Script()
        loss = script.loss()
        scaled = script.scaler.scale(loss)
        (scaled if divisor == 1 else scaled / divisor).backward()
    assert script.scaler.get_scale() == 2.0**16 and told.losses == [loss.item() / divisor]


def test_gradients_of_half_models_are_unscaled():
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        Script(torch.float16, init_scale=256.0).step(unscales=True)
    with forced("O2"):
        script = Script(torch.float16, init_scale=256.0).step(unscales=True)
        assert not amp.step_was_skipped(script.optimizer)
        assert {each.dtype for each in amp.master_params(script.optimizer)} == {torch.float32}


def test_a_disabled_scaler_leaves_the_scale_to_the_level(level):
    with forced(level):
        script = Script(enabled=False).step(2.0**20)
        assert script.scaler.get_scale() == 1.0 and script.scaler.state_dict() == {}
        is_dynamic = process_state.current().scalers[0].dynamic
        assert amp.step_was_skipped(script.optimizer) is is_dynamic


def test_without_a_level_nothing_changes():
    with forced(None):
        script = Script().step()
        assert record_of(script.optimizer) is None and script.scaler.get_scale() == 2.0**16


def test_a_trainer_that_puts_its_own_step_in_place_as_accelerate_does(level):
    with forced(level):
        script = Script()
        optimizer, called = script.optimizer, []
        original = optimizer.step

        def patched(*args, **kwargs):
            called.append(True)
            return original(*args, **kwargs)

        for factor in (SMALL, SMALL, 2.0**20):
            before = script.weights()
            called.clear()
            optimizer.zero_grad()
            script.scaler.scale(script.loss(factor)).backward()
            optimizer.step = patched
            script.scaler.step(optimizer)
            script.scaler.update()
            optimizer.step = original
            is_skipped = factor > 1 and process_state.current().scalers[0].dynamic
            assert called == ([] if is_skipped else [True])
            assert amp.step_was_skipped(optimizer) is is_skipped
            assert all(torch.equal(one, other) for one, other in zip(before, script.weights())) is is_skipped
