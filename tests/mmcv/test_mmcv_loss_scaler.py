"""MMCV's loss scaler: the forms of a config, how the scale changes, state dicts of MMCV's and torch's scalers."""

import hypothesis
import pytest
import torch
from hypothesis import strategies

from ampcompat.mmcv import Fp16OptimizerHook, LossScaler
from ampcompat.mmcv.mmcv_loss_scaler import parse_loss_scale

#: loss_scale, the initial scale, the scale after an overflow, and the iterations until it grows (None: never).
FORMS = [
    (512.0, 512.0, 512.0, None),
    (512, 512.0, 512.0, None),
    ("512.", 512.0, 512.0, None),
    ("dynamic", 2.0**16, 2.0**15, 2000),
    ({}, 2.0**16, 2.0**15, 2000),
    ({"init_scale": 512.0}, 512.0, 256.0, 2000),
    ({"init_scale": 512.0, "mode": "dynamic"}, 512.0, 256.0, 1000),
    ({"mode": "dynamic"}, 2.0**32, 2.0**31, 1000),
    ({"init_scale": 64.0, "mode": "static"}, 64.0, 64.0, None),
    ({"init_scale": 64.0, "scale_factor": 4.0, "scale_window": 3}, 64.0, 16.0, 3),
    ({"init_scale": 64.0, "growth_factor": 2.0, "backoff_factor": 0.125, "growth_interval": 5}, 64.0, 8.0, 5),
    ({"enabled": False}, 1.0, 1.0, None),
]


@pytest.mark.parametrize("form, start, after, window", FORMS, ids=[str(form[0]) for form in FORMS])
def test_every_form_of_a_config_gives_its_scale(form, start, after, window):
    scaler = Fp16OptimizerHook(loss_scale=form).loss_scaler
    assert scaler.loss_scale == scaler.cur_scale == scaler.get_scale() == start
    for _ in range(window or 3000):
        scaler.update_scale(False)
    factor = form.get("scale_factor", 2.0) if isinstance(form, dict) else 2.0
    assert scaler.loss_scale == (start * factor if window else start)
    again = parse_loss_scale(form)
    again.update_scale(True)
    assert again.loss_scale == after


@pytest.mark.parametrize(
    "form, message",
    [
        (None, "a number"),
        (True, "a number"),
        ([512.0], "a number"),
        ("static", "positive number"),
        (-1.0, "positive number"),
        (float("nan"), "positive number"),
        ({"init_scal": 3}, "unknown keys .'init_scal'"),
        ({"mode": "adaptive"}, "mode must be"),
        ({"scale_window": 0}, "scale_window"),
        ({"growth_interval": 2.5}, "scale_window"),
        ({"scale_factor": 0.5}, "must be more than 1 for growth"),
        ({"backoff_factor": 1.0}, "must be more than 1 for growth"),
    ],
)
def test_a_wrong_loss_scale_is_an_error(form, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Fp16OptimizerHook(loss_scale=form)


class Counting:
    """The rule of MMCV's own scaler: count all iterations, and keep the last one that overflowed."""

    def __init__(self, scale, factor, window):
        self.scale, self.factor, self.window, self.iterations, self.last = scale, factor, window, 0, -1

    def update(self, overflow):
        if overflow:
            self.scale, self.last = max(self.scale / self.factor, 1.0), self.iterations
        elif (self.iterations - self.last) % self.window == 0:
            self.scale *= self.factor
        self.iterations += 1


@hypothesis.given(strategies.lists(strategies.booleans(), max_size=60), strategies.integers(1, 5), strategies.data())
def test_scale_moves_as_mmcv_moved_it_also_across_a_checkpoint(overflows, window, data):
    cut = data.draw(strategies.integers(0, len(overflows)))
    scaler, rule = LossScaler(init_scale=8.0, scale_window=window), Counting(8.0, 2.0, window)
    for index, overflow in enumerate(overflows):
        if index == cut:
            state, scaler = scaler.state_dict(), LossScaler()
            scaler.load_state_dict(state)
        scaler.update_scale(overflow)
        rule.update(overflow)
        assert (scaler.cur_scale, scaler.cur_iter) == (rule.scale, rule.iterations)
        assert scaler.last_overflow_iter == rule.last


def test_overflows_are_found_in_gradients_but_not_with_a_static_scale():
    weight = torch.nn.Parameter(torch.zeros(2))
    params = [weight, torch.nn.Parameter(torch.zeros(1))]
    for bad in (float("inf"), -float("inf"), float("nan")):
        weight.grad = torch.tensor([1.0, bad])
        assert LossScaler().has_overflow(params) is True
        assert LossScaler(mode="static").has_overflow(params) is False
    weight.grad = torch.ones(2)
    assert LossScaler().has_overflow(params) is False


def test_a_state_of_mmcvs_own_scaler_is_loaded():
    scaler = LossScaler()
    saved = dict(cur_scale=32.0, cur_iter=9, mode="dynamic", last_overflow_iter=5, scale_factor=4.0, scale_window=5)
    scaler.load_state_dict(saved)
    assert {name: value for name, value in scaler.state_dict().items() if name in saved} == saved
    scaler.update_scale(False)  # iterations 6, 7, 8 and this one were good
    assert scaler.cur_scale == 32.0
    scaler.update_scale(False)
    assert scaler.cur_scale == 128.0


def test_a_state_of_torchs_scaler_is_loaded():
    scaler = parse_loss_scale("dynamic")
    scaler.load_state_dict(
        {"scale": 64.0, "growth_factor": 2.0, "backoff_factor": 0.25, "growth_interval": 10, "_growth_tracker": 9}
    )
    scaler.update_scale(False)
    assert scaler.cur_scale == 128.0
    scaler.update_scale(True)
    assert scaler.cur_scale == 32.0


def test_torchs_scaler_loads_our_state():
    amp = getattr(torch, "amp", None)
    if not hasattr(amp, "GradScaler"):
        pytest.skip("this torch has no GradScaler for the CPU")
    own = LossScaler(init_scale=128.0, scale_window=50)
    for overflow in (True, False, False):
        own.update_scale(overflow)
    grad_scaler = amp.GradScaler("cpu")
    grad_scaler.load_state_dict(own.state_dict())
    state = grad_scaler.state_dict()
    assert (state["scale"], state["_growth_tracker"], state["growth_interval"]) == (64.0, 2, 50)


def test_a_state_of_neither_is_an_error():
    with pytest.raises(RuntimeError, match=r"keys of MMCV's LossScaler .* this one has \['loss_scale'\]"):
        LossScaler().load_state_dict({"loss_scale": 3})
