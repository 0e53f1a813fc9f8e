"""Specification 7.10 and 7.11: every way to call an optimizer, and params that come, go, freeze and thaw."""

import functools
import gc
import weakref

import pytest
import torch
from helpers import fused_optimizers, loops
from helpers.networks import (
    INPUT,
    Product,
    ProductReference,
    each_setting,
    each_setting_and_stored,
    initialize,
    session_of,
    settings_at,
    settings_of,
)
from helpers.pairing import paired

from ampcompat import amp

X = 2.0**-4


def begin(setting, make_optimizer=None, **options):
    model = Product(1.0).to(setting.high)
    optimizer = (make_optimizer or (lambda params: torch.optim.SGD(params, lr=0.25)))(model.parameters())
    initialize(setting, model, optimizer, **dict({"loss_scale": 128.0}, **options))
    return model, optimizer


def backward(setting, model, optimizers, factor=X, **options):
    loops.backward(factor * model(INPUT.to(setting.high)).sum(), optimizers, **options)


def begin_sparse(setting, **options):
    """Return an embedding of ones with sparse gradients, and its optimizer."""
    table = torch.nn.Embedding(4, 2, sparse=True).to(setting.high)
    table.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    initialize(setting, table, optimizer, **options)
    return table, optimizer


def skip_unless_step_hooks_run():
    """Skip where torch runs no step hooks: old torch, and torch 2.0 and 2.1 once its compiler has been imported."""
    if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
        pytest.skip("this torch has no step hooks")
    optimizer, calls = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), []
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    if not calls:
        pytest.skip("the compiler of this torch, once imported, turns step hooks off")


@each_setting_and_stored
def test_step_hooks_run_around_real_steps_only(setting, session):
    skip_unless_step_hooks_run()
    model, optimizer = begin(setting, loss_scale="dynamic")
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    backward(setting, model, optimizer)
    optimizer.step()
    assert calls == ["before", "after"]
    backward(setting, model, optimizer, factor=float("inf"))
    optimizer.step()
    assert calls == ["before", "after"]


@each_setting_and_stored
def test_sparse_gradients_are_unscaled_summed_and_stepped(setting, session):
    if setting.level == "O3":
        skip_unless_sparse_adds(setting.low)
    table, optimizer = begin_sparse(setting, loss_scale=64.0)
    for _ in range(2):
        loops.backward(table(torch.tensor([1, 1, 3])).sum() * X, optimizer)
    grad = next(amp.master_params(optimizer)).grad
    expected = torch.tensor([[0.0, 0.0], [4 * X, 4 * X], [0.0, 0.0], [2 * X, 2 * X]], dtype=grad.dtype)
    assert grad.is_sparse and torch.equal(grad.to_dense(), expected)
    optimizer.step()
    assert torch.equal(table.weight.detach(), (1.0 - expected).to(table.weight.dtype))


def skip_unless_sparse_adds(dtype):
    """Skip where torch itself cannot accumulate sparse gradients of a dtype."""
    try:
        torch.eye(2).to(dtype).to_sparse() + torch.eye(2).to(dtype).to_sparse()
    except RuntimeError as error:
        pytest.skip(f"this torch cannot accumulate sparse gradients in {dtype}: {error}")


@each_setting_and_stored
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_overflow_in_a_sparse_gradient_is_seen(setting, value, session):
    table, optimizer = begin_sparse(setting, loss_scale="dynamic")
    loops.step(table(torch.tensor([1, 3])).sum() * value, optimizer)
    assert amp.step_was_skipped(optimizer)


@paired(
    "setting, options, name, scheduled",
    settings_of("O0", "O1", "O2"),
    [{"fused": True}, {"foreach": True}, {"foreach": False}],
    ["SGD", "Adam"],
    [False, True],
)
def test_fused_and_foreach_optimizers_skip_as_others_do(setting, name, options, scheduled, capsys):
    def make_optimizer(params):
        return getattr(torch.optim, name)(params, lr=2.0**-4, **options)

    param = torch.nn.Parameter(torch.ones(1))
    param.grad = torch.ones(1)
    try:
        make_optimizer([param]).step()
    except (TypeError, RuntimeError) as error:
        pytest.skip(f"this torch has no such {name}: {str(error).splitlines()[0]}")
    with session_of(setting, verbosity=1):
        model, optimizer = begin(setting, make_optimizer, loss_scale="dynamic", num_losses=2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 1.0) if scheduled else None
        capsys.readouterr()
        said, told = "", 0
        for overflows in ((False, False), (True, False), (False, True), (True, True), (False, False)):
            before = [param.detach().clone() for param in amp.master_params(optimizer)]
            steps = [float(optimizer.state[p].get("step", 0)) for p in amp.master_params(optimizer)]
            optimizer.zero_grad()
            for loss_id, overflow in enumerate(overflows):
                backward(setting, model, optimizer, factor=float("inf") if overflow else X, loss_id=loss_id)
            optimizer.step()
            if scheduled:
                scheduler.step()
            now = [param.detach() for param in amp.master_params(optimizer)]
            assert amp.step_was_skipped(optimizer) is any(overflows)
            assert all(map(torch.equal, before, now)) is any(overflows)
            said += capsys.readouterr().out
            told += sum(overflows)
            # Where the device decides whether to skip, the notice may come late.
            assert said.count("Skipping step") == told or "fused" in options
            if any(overflows):
                assert steps == [float(optimizer.state[p].get("step", 0)) for p in amp.master_params(optimizer)]
        scales = [(state["loss_scale"], state["unskipped"]) for state in amp.state_dict().values()]
        assert scales == [(2.0**14, 1), (2.0**14, 1)]
        assert (said + capsys.readouterr().out).count("Skipping step") == told


needs_hooks = pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="this torch has no such hooks"
)


def begin_with_steps_in_backward(setting, scale):
    """Initialize a network that is updated while backward runs, with an optimizer for each param; return these."""
    model = Product(1.0).to(setting.high)
    optimizers = {param: torch.optim.SGD([param], lr=0.25) for param in model.parameters()}
    initialize(setting, model, list(optimizers.values()), loss_scale=scale)

    def step(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step)
    return model, list(optimizers.values())


@needs_hooks
@each_setting
def test_steps_within_backward_use_true_gradients_where_nothing_is_scaled(setting, session):
    model, optimizers = begin_with_steps_in_backward(setting, 1.0)
    reference = ProductReference(setting, model)
    backward(setting, model, optimizers)
    reference.backward(X)
    for name in ("a", "b"):
        wanted = getattr(reference, name) - 0.25 * reference.grads[name]
        assert torch.equal(model.state_dict()[name].double(), setting.rounds_state(wanted))


@needs_hooks
@each_setting
@pytest.mark.parametrize("scale", [64.0, "dynamic"])
def test_steps_within_a_scaled_backward_pass_are_an_error_that_names_the_hook(setting, scale, session):
    model, optimizers = begin_with_steps_in_backward(setting, scale)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"test_optimizer_calls.py:\d+: SGD.step\(\).* within a backward pass"):
        backward(setting, model, optimizers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@settings_at("O2", "O5")
def test_a_step_on_one_half_param_is_an_error_that_names_the_line(setting, session):
    class OneByOne(torch.optim.SGD):
        def step(self, closure=None, param=None):
            raise AssertionError("it would look for the state of a param that it does not have")

    model, optimizer = begin(setting, lambda params: OneByOne(params, lr=0.25))
    backward(setting, model, optimizer)
    with pytest.raises(RuntimeError, match=r"test_optimizer_calls.py:\d+: OneByOne.step\(\) got a param"):
        optimizer.step(param=model.a)


@pytest.mark.skipif(fused_optimizers.why_not("SGD") is not None, reason="this torch has no fused SGD on the CPU")
@settings_at("O1", "O2")
def test_a_skipped_first_step_of_a_fused_sgd_makes_no_momentum(setting, session):
    """Torch's own makes it of memory with any values, and leaves it so where ``found_inf`` is 1."""
    make = functools.partial(torch.optim.SGD, lr=2.0**-4, momentum=0.5, fused=True)
    model, optimizer = begin(setting, make, loss_scale="dynamic")
    backward(setting, model, optimizer, factor=float("inf"))
    optimizer.step()
    assert amp.step_was_skipped(optimizer)
    assert all(state.get("momentum_buffer") is None for state in optimizer.state.values())


@each_setting
def test_a_param_without_a_gradient_is_left_alone(setting, session):
    model = [Product(1.0).to(setting.high), Product(1.5).to(setting.high)]
    params = list(model[0].parameters()) + list(model[1].parameters())
    optimizer = torch.optim.SGD(params, lr=0.25, weight_decay=0.5)
    initialize(setting, model, optimizer, loss_scale=128.0)
    before = [param.detach().clone() for param in model[1].parameters()]
    backward(setting, model[0], optimizer)
    optimizer.step()
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, model[1].parameters()))


@each_setting
@pytest.mark.parametrize("verbosity", [0, 1])
def test_an_optimizer_that_was_not_initialized_is_initialized_in_scale_loss(setting, verbosity, capsys):
    with session_of(setting, verbosity=verbosity):
        model = Product(1.0).to(setting.high)
        initialize(setting, model, loss_scale=128.0)
        capsys.readouterr()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        backward(setting, model, optimizer)
        assert ("amp.initialize" in capsys.readouterr().out) == bool(verbosity)
        wide = setting.high if setting.has_masters or not setting.casts_weights else setting.low
        assert {param.dtype for param in amp.master_params(optimizer)} == {wide}
        expected = [param.detach() - 0.25 * param.grad for param in amp.master_params(optimizer)]
        optimizer.step()
        assert all(map(torch.equal, expected, [p.detach() for p in amp.master_params(optimizer)]))
        backward(setting, model, optimizer)
        assert capsys.readouterr().out == ""


def begin_two(setting):
    model = Product(1.0).to(setting.high)
    optimizers = [torch.optim.SGD([model.a], lr=0.25), torch.optim.SGD([model.b], lr=0.25)]
    initialize(setting, model, optimizers, loss_scale=128.0)
    return [model] + optimizers


@settings_at("O1", "O2")
@pytest.mark.parametrize("used_before", [False, True])
def test_gradients_of_an_optimizer_that_was_not_given_are_warned_about(setting, used_before, capsys, loud):
    model, given, forgotten = begin_two(setting)
    capsys.readouterr()
    if used_before:
        backward(setting, model, [given, forgotten])
        given.step(), forgotten.step()
    backward(setting, model, given)
    assert capsys.readouterr().out == ""
    forgotten.step()
    assert "scaled by 128" in capsys.readouterr().out
    forgotten.step()
    assert capsys.readouterr().out == ""


@settings_at("O1", "O2")
@pytest.mark.parametrize("forget", ["optimizer", "model", "in place"])
def test_gradients_that_were_thrown_away_are_not_warned_about(setting, forget, capsys, loud):
    model, given, other = begin_two(setting)
    capsys.readouterr()
    backward(setting, model, given)
    if forget == "optimizer":
        other.zero_grad()
    elif forget == "model":
        for param in model.parameters():
            param.grad = None
    else:
        model.b.grad.detach_().zero_()  # as ``Module.zero_grad`` does before torch 2.0
    backward(setting, model, other)
    other.step()
    assert capsys.readouterr().out == ""


@settings_at("O1", "O2")
def test_gradients_that_are_clipped_after_the_pass_of_another_optimizer_are_not_warned_about(setting, capsys, loud):
    models = [Product(1.0).to(setting.high) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.25) for model in models]
    initialize(setting, models, optimizers, loss_scale=128.0)
    capsys.readouterr()
    for model, optimizer in zip(models, optimizers):
        backward(setting, model, optimizer)
    for optimizer in optimizers:
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
        optimizer.step()
    assert capsys.readouterr().out == ""


@each_setting
def test_param_marks_of_the_users_are_on_the_masters(setting, session):
    model = Product(1.0).to(setting.high)
    model.a.no_weight_decay = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer)
    assert [getattr(p, "no_weight_decay", False) for p in amp.master_params(optimizer)] == [True, False]


@each_setting
def test_an_optimizer_without_torchs_base_class_works(setting, session):
    class Descent:
        """The four names that every optimizer has, and nothing else."""

        def __init__(self, params):
            self.param_groups, self.state = [{"params": list(params)}], {}

        def zero_grad(self):
            for param in self.param_groups[0]["params"]:
                param.grad = None

        def step(self):
            with torch.no_grad():
                for param in self.param_groups[0]["params"]:
                    param -= 0.25 * param.grad

    model, optimizer = begin(setting, Descent)
    backward(setting, model, optimizer)
    expected = [p.detach() - 0.25 * p.grad for p in amp.master_params(optimizer)]
    optimizer.step()
    assert all(map(torch.equal, expected, [p.detach() for p in amp.master_params(optimizer)]))
    optimizer.zero_grad(set_to_none=True)  # an argument that its own zero_grad lacks
    assert all(param.grad is None for param in [*model.parameters(), *amp.master_params(optimizer)])


@each_setting
def test_state_of_the_whole_optimizer_is_kept(setting, session):
    class Counting(torch.optim.SGD):
        def __init__(self, params):
            super(Counting, self).__init__(params, lr=0.25)
            self.state["steps"] = 0
            self.state["sent"] = {}

        def step(self, closure=None):
            self.state["steps"] += 1
            return super(Counting, self).step(closure)

    model, optimizer = begin(setting, Counting)
    backward(setting, model, optimizer)
    optimizer.step()
    assert (optimizer.state["steps"], optimizer.state["sent"]) == (1, {})


@settings_at("O2", "O3", "O5")
def test_the_count_of_steps_of_a_single_number_is_not_rounded(setting, session):
    model = torch.nn.Module()
    model.factor = torch.nn.Parameter(torch.ones((), dtype=setting.high))
    optimizer = torch.optim.Adam(model.parameters())
    model.factor.grad = torch.ones_like(model.factor)
    optimizer.step()
    state = optimizer.state[model.factor]
    if not isinstance(state["step"], torch.Tensor):
        pytest.skip("this torch counts steps in a Python int")
    state["step"].fill_(2049.0)  # which float16 and bfloat16 do not have
    initialize(setting, model, optimizer)
    (state,) = optimizer.state.values()
    assert state["step"].item() == 2049.0
    assert state["exp_avg"].dtype is (setting.high if setting.has_masters else setting.low)


@each_setting
def test_a_sparse_gradient_is_added_to_one_that_was_set_aside(setting, session):
    """The gradient of a pass that overflowed is set aside in the next pass."""
    if setting.level == "O3":
        skip_unless_sparse_adds(setting.low)
    table, optimizer = begin_sparse(setting, loss_scale="dynamic")
    before = table.weight.detach().clone()
    loops.backward(table.weight.sum() * float("inf"), optimizer)
    loops.step(table(torch.tensor([1, 3])).sum() * X, optimizer)
    assert amp.step_was_skipped(optimizer) and torch.equal(table.weight, before)


class Repeating(torch.optim.SGD):
    """Evaluates its closure five times."""

    def step(self, closure):
        for _ in range(4):
            closure()
        return super().step(closure)


@each_setting
def test_a_closure_that_is_evaluated_often_keeps_no_earlier_loss(setting, session):
    model, optimizer = begin(setting, lambda params: Repeating(params, lr=0.25))
    losses, alive = [], []

    def closure():
        gc.collect()
        alive.append(sum(reference() is not None for reference in losses))
        optimizer.zero_grad()
        loss = X * model(INPUT.to(setting.high)).sum()
        losses.append(weakref.ref(loss))
        loops.backward(loss, optimizer)
        return loss

    optimizer.step(closure)
    assert len(alive) == 5 and max(alive) <= 1


class Preconditioned(torch.optim.SGD):
    """Multiplies matrices in its step, as second-order optimizers do; ``dtypes`` are those of the products."""

    def step(self, closure=None):
        square = torch.eye(2, dtype=self.param_groups[0]["params"][0].dtype)
        self.dtypes = [square.dtype, torch.mm(square, square).dtype, torch.nn.functional.linear(square, square).dtype]
        return super().step(closure)


@each_setting
@pytest.mark.parametrize("with_state", [False, True], ids=["nothing to update", "with an overflow check"])
def test_functions_within_a_step_are_not_cast(setting, with_state, session):
    scale = "dynamic" if with_state else 1.0
    model, optimizer = begin(setting, lambda params: Preconditioned(params, lr=0.25), loss_scale=scale)
    backward(setting, model, optimizer)
    optimizer.step()
    assert len(set(optimizer.dtypes)) == 1
