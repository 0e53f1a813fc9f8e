"""MMCV's mixed-precision hooks, without mmcv: against a float64 loop with explicit rounding, at every level."""

import copy
from types import SimpleNamespace

import pytest
import torch
from helpers import precision, ranks
from helpers.networks import (
    MOMENTUM,
    RATE,
    ProductReference,
    differing,
    each_setting,
    session_of,
    settings_at,
    weights_of,
)
from helpers.precision import HIGH, LOW
from mmcv_loops import BareRunner, DecoratedProduct, factor_of, losses_of

import ampcompat
from ampcompat import amp, mmcv
from ampcompat.mmcv import Fp16OptimizerHook, GradientCumulativeFp16OptimizerHook, OptimizerHook


def make(setting, rate=RATE):
    """Return a model and its optimizer."""
    model = DecoratedProduct(1.0).to(setting.high)
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)


FLOAT32 = SimpleNamespace(high=HIGH)


def make_runner(hook, iterations=1, overflows=(), rate=RATE):
    """Return a runner of a model in float32 by plain SGD."""
    model = DecoratedProduct(1.0).to(HIGH)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return BareRunner(model, optimizer, hook, losses_of(FLOAT32, overflows), iterations)


def reference_run(setting, model, length, total, start=0, overflows=()):
    """Return the reference after iterations ``start`` to ``total``, ``length`` of them to a step."""
    reference = ProductReference(setting, model)
    for first in range(start - start % length, total, length):
        group = [iteration for iteration in range(max(first, start), min(first + length, total))]
        for iteration in group:
            reference.backward(factor_of(iteration) / len(group))
        if not set(group) & set(overflows):
            reference.step()
        reference.zero_grad()
    return reference


def assert_equal(model, reference):
    """Compare a model's state dict, which holds masters where there are any, with the reference to the last bit."""
    state = model.state_dict()
    assert torch.equal(state["a"].double(), reference.a) and torch.equal(state["b"].double(), reference.b)


@each_setting
@pytest.mark.parametrize("loss_scale", [{"init_scale": 1024.0}, 512.0], ids=["dynamic", "static"])
def test_mixed_precision_equals_the_written_out_loop_to_the_last_bit(setting, loss_scale):
    with session_of(setting):
        model, optimizer = make(setting)
        reference = reference_run(setting, model, 1, 6, overflows=(2,))
        hook = Fp16OptimizerHook(loss_scale=loss_scale, opt_level=setting.level)
        runner = BareRunner(model, optimizer, hook, losses_of(setting, overflows=(2,)), 6).run()
        assert_equal(model, reference)
        assert runner.meta["fp16"]["loss_scaler"]["scale"] == hook.loss_scaler.loss_scale == 512.0


@each_setting
def test_accumulation_equals_the_written_out_loop_to_the_last_bit(setting):
    with session_of(setting):
        model, optimizer = make(setting)
        reference = reference_run(setting, model, 4, 14, start=2, overflows=(6,))
        hook = GradientCumulativeFp16OptimizerHook(cumulative_iters=4, loss_scale="dynamic", opt_level=setting.level)
        losses = losses_of(setting, overflows=(6,))
        runner = BareRunner(model, optimizer, hook, losses, 14, iter=2).run()
        assert_equal(model, reference)
        assert hook.loss_scaler.cur_iter == 4 and hook.loss_scaler.last_overflow_iter == 1
        assert runner.meta["fp16"]["loss_scaler"] == hook.loss_scaler.state_dict()


@settings_at("O0", "O1", "O2", "O5")
def test_hooks_without_a_scale_of_their_own_step_at_the_level_of_initialize(setting):
    with session_of(setting):
        model, optimizer = make(setting)
        reference = reference_run(setting, model, 4, 10)
        model.fp16_enabled = True
        amp.initialize(model, optimizer, opt_level=setting.level, verbosity=0)
        hook = mmcv.GradientCumulativeOptimizerHook(cumulative_iters=4)
        BareRunner(model, optimizer, hook, losses_of(setting), 10).run()
        assert_equal(model, reference)


@settings_at("O1", "O2")
def test_an_initialized_optimizer_keeps_its_level(setting):
    with session_of(setting) as session:
        model, optimizer = make(setting)
        reference = reference_run(setting, model, 1, 3)
        amp.initialize(model, optimizer, opt_level=setting.level, verbosity=0)
        hook = Fp16OptimizerHook(loss_scale=64.0, opt_level="O0")
        BareRunner(model, optimizer, hook, losses_of(setting), 3).run()
        assert session.policy.opt_level == setting.level
        assert_equal(model, reference)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def saved(runner):
    """Return what a runner of mmcv's saves, as an independent copy."""
    parts = {"meta": runner.meta, "model": runner.model.state_dict(), "optimizer": runner.optimizer.state_dict()}
    return copy.deepcopy(dict(parts, iter=runner.iter))


@pytest.mark.parametrize("cut", (4, 8))
@settings_at("O1", "O2", "O4")
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(setting, cut):
    def runner_of(**options):
        model, optimizer = make(setting)
        loss_scale = {"init_scale": 1024.0, "growth_interval": 2}
        hook = GradientCumulativeFp16OptimizerHook(cumulative_iters=4, loss_scale=loss_scale, opt_level=setting.level)
        return BareRunner(model, optimizer, hook, losses_of(setting, overflows=(1,)), 14, **options)

    with session_of(setting):
        whole = runner_of()
        checkpoint = saved(whole.run(until=cut))
        expected = weights_of(whole.run().model)
        scale = whole.meta["fp16"]["loss_scaler"]
    with session_of(setting):
        resumed = runner_of(iter=checkpoint["iter"], meta=checkpoint["meta"])
        resumed.model.load_state_dict(checkpoint["model"])
        resumed.optimizer.load_state_dict(checkpoint["optimizer"])
        assert differing(weights_of(resumed.run().model), expected) == []
        assert resumed.meta["fp16"]["loss_scaler"] == scale


@pytest.mark.parametrize(
    "state",
    [
        dict(cur_scale=32.0, cur_iter=9, mode="dynamic", last_overflow_iter=5, scale_factor=2.0, scale_window=1000),
        dict(scale=32.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, _growth_tracker=3),
    ],
    ids=("MMCV's scaler", "torch's scaler"),
)
def test_a_scale_that_mmcv_saved_is_resumed_unless_the_config_wants_a_static_one(state):
    for loss_scale, expected in (("dynamic", 32.0), (512.0, 512.0)):
        hook = Fp16OptimizerHook(loss_scale=loss_scale)
        runner = make_runner(hook)
        runner.meta = {"fp16": {"loss_scaler": state}}
        hook.before_run(runner)
        assert hook.loss_scaler.loss_scale == expected


# -- clipping and the log ----------------------------------------------------------------------------------------------


class LogBuffer:
    def __init__(self):
        self.seen = []

    def update(self, values, count):
        self.seen.append((values, count))


@pytest.mark.parametrize("hook_class", (OptimizerHook, Fp16OptimizerHook, GradientCumulativeFp16OptimizerHook))
def test_unscaled_gradients_are_clipped_and_their_norm_is_logged(hook_class):
    runner = make_runner(hook_class(grad_clip=dict(max_norm=2.0**-10, norm_type=2)), rate=1.0)
    before = weights_of(runner.model)
    runner.log_buffer = LogBuffer()
    runner.run()
    x, factor = torch.tensor([1.0, -0.5]).double(), factor_of(0)
    norm = torch.cat([factor * x * before["b"].double(), factor * x * before["a"].double()]).norm().item()
    assert runner.log_buffer.seen == [({"grad_norm": pytest.approx(norm, rel=1e-6)}, 1)]
    moved = torch.cat([(weights_of(runner.model)[name] - before[name]).double() for name in ("a", "b")])
    assert moved.norm().item() == pytest.approx(2.0**-10, rel=1e-3)


def test_an_overflow_is_neither_clipped_nor_logged():
    runner = make_runner(Fp16OptimizerHook(grad_clip=dict(max_norm=1.0)), overflows=(0,))
    before = weights_of(runner.model)
    runner.log_buffer = LogBuffer()
    runner.run()
    assert runner.log_buffer.seen == [] and differing(weights_of(runner.model), before) == []
    assert amp.step_was_skipped(runner.optimizer)


# -- around it ---------------------------------------------------------------------------------------------------------


def test_the_hook_prints_overflows_and_nothing_else(capsys):
    make_runner(Fp16OptimizerHook(loss_scale="dynamic"), overflows=(0,)).run()
    said = capsys.readouterr().out.splitlines()
    assert said == ["Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0"]


def test_two_runs_side_by_side_have_a_scale_each():
    runners = []
    for scale in (64.0, 1024.0):
        hook = Fp16OptimizerHook(loss_scale={"init_scale": scale})
        runners.append(make_runner(hook, 4, overflows=(1,) if scale == 64.0 else ()).run(until=1))
    for runner in runners + runners:
        runner.run(until=runner.iter + 1) if runner.iter < 3 else runner.run()
    assert [runner.hook.loss_scaler.loss_scale for runner in runners] == [32.0, 1024.0]


def test_without_before_run_the_first_iteration_is_an_error():
    runner = make_runner(Fp16OptimizerHook())
    runner.outputs = {"loss": runner.losses(runner.model, 0)}
    with pytest.raises(RuntimeError, match="Call its before_run"):
        runner.hook.after_train_iter(runner)


def test_an_unknown_level_is_an_error():
    with pytest.raises(RuntimeError, match="Unknown opt_level 'O9'"):
        Fp16OptimizerHook(opt_level="O9")


def test_where_amp_is_disabled_the_hooks_train_in_float32():
    amp.initialize(torch.nn.Linear(1, 1), enabled=False)
    model = DecoratedProduct(1.0).to(torch.float64)
    setting = SimpleNamespace(high=torch.float64, rounds_weights=lambda t: t, rounds_state=lambda t: t)
    reference = reference_run(setting, model, 2, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    hook = GradientCumulativeFp16OptimizerHook(cumulative_iters=2)
    BareRunner(model, optimizer, hook, losses_of(setting), 5).run()
    assert torch.equal(model.a.detach(), reference.a)


def test_after_reset_the_model_and_its_optimizer_are_plain_again():
    runner = make_runner(Fp16OptimizerHook(opt_level="O2"), 2).run()
    assert runner.model.a.dtype is LOW
    ampcompat.reset()
    assert runner.model.a.dtype is HIGH and "step" not in vars(runner.optimizer)


# -- ranks -------------------------------------------------------------------------------------------------------------


def rank_of_hooks(rank):
    """Train with another batch on each rank, and an overflow on rank 1 at iteration 1; return what came of it."""
    torch.manual_seed(0)
    model = DecoratedProduct(1.0).to(precision.HIGH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def loss(model, iteration):
        total = model(torch.tensor([1.0, 0.5], dtype=precision.HIGH) * (rank + 1)).sum() / 4
        return total * float("inf") if (rank, iteration) == (1, 1) else total

    found = []
    for options in ({"coalesce": False}, {"bucket_size_mb": 1}, {}):
        hook = Fp16OptimizerHook(loss_scale={"init_scale": 256.0}, **options)
        BareRunner(model, optimizer, hook, loss, 3).run()
        found.append(hook.loss_scaler.loss_scale)
    ampcompat.reset()
    return {"weights": weights_of(model), "scales": found, "averages": averages_on(rank)}


def averages_on(rank):
    """Return the averages of gradients that differ between ranks, in each way of sending them."""
    params = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 1, 2)] + [torch.nn.Parameter(torch.zeros(1))]
    averages = []
    for options in ({}, {"coalesce": False}, {"bucket_size_mb": 1}):
        for index, param in enumerate(params[:3]):
            param.grad = torch.full_like(param, float((rank + 1) * (index + 1)))
        mmcv.allreduce_grads(params, **options)
        averages.append([param.grad[0].item() for param in params[:3]])
    return averages


def test_ranks_average_their_gradients_and_skip_together():
    first, second = ranks.run(rank_of_hooks)
    assert differing(first["weights"], second["weights"]) == []
    assert first["scales"] == second["scales"] == [128.0] * 3
    assert first["averages"] == second["averages"] == [[1.5, 3.0, 4.5]] * 3


def test_gradients_of_one_process_are_unchanged():
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    mmcv.allreduce_grads([param])
    assert torch.equal(param.grad, torch.ones(2))
