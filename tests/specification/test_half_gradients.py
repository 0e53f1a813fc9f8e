"""Specification 7.26: ``.grad`` of half params after ``scale_loss``: unscaled, and what a script changes is obeyed.

Expected values are a training by hand in float64, whose gradients the same lines of a script change.
"""

import contextlib
import ctypes
import gc

import pytest
import torch
from helpers import loops
from helpers.gradient_states import change
from helpers.networks import (
    INPUT,
    SETTINGS,
    STORED,
    Product,
    differing,
    each_setting,
    each_setting_and_stored,
    holds_nonzero,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    settings_of,
    train_step,
    weights_of,
)
from helpers.pairing import paired

import ampcompat
from ampcompat import amp
from ampcompat.support.torch_compat import features

RATE = 0.25
cast_weights = settings_at("O2", "O3", "O5", stored=True)
with_masters = settings_at("O2", "O5", stored=True)
SCALES = [{"loss_scale": 1024.0}, {"loss_scale": "dynamic"}, {}]


def smooth_network(setting):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).to(setting.high)


def begin(setting, **options):
    model = smooth_network(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    initialize(setting, model, optimizer, **options)
    return model, optimizer


class ByHand(torch.nn.Sequential):
    """A network in float64, which is trained without amp."""


def begin_by_hand(setting):
    model = ByHand(*smooth_network(setting).double())
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def loss_of(model, index):
    x, target = make_batch(seed=index + 1)
    x = x.double() if isinstance(model, ByHand) else x
    return torch.nn.functional.cross_entropy(model(x).double(), target)


def tolerance(setting):
    """Return the relative error of gradients and of short trainings at a level: some roundings to its dtype."""
    return 1e-6 if setting.level == "O0" else 24 * torch.finfo(setting.low).eps


# -- what scripts do to gradients --------------------------------------------------------------------------------------


def clip_norm(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.125)


def freeze_rows(model):
    model[0].weight.grad[:4].zero_()


def remove_some(model):
    model[0].weight.grad = None
    model[2].bias.grad = None


def clear_the_model(model):
    model.zero_grad()


def divide_in_a_kept_list(model):
    grads = [param.grad for param in model.parameters()]
    for grad in grads:
        grad /= 4.0


def through_numpy(model):
    for param in model.parameters():
        if param.grad.dtype is torch.bfloat16:  # numpy has none
            param.grad.mul_(0.25)
        else:
            param.grad.numpy()[...] *= 0.25


def through_an_address(model):
    for param in model.parameters():
        grad = param.grad
        ctypes.memset(grad.data_ptr(), 0, grad.numel() // 2 * grad.element_size())


def one_of_them(model):
    model[2].weight.grad.mul_(4.0)


def each(how):
    """Return a function that changes the gradients of all params of a model."""

    def change_all(model):
        for param in model.parameters():
            change(param, how)

    change_all.__name__ = how
    return change_all


CHANGES = [
    clip_norm,
    freeze_rows,
    remove_some,
    clear_the_model,
    divide_in_a_kept_list,
    through_numpy,
    through_an_address,
    one_of_them,
    *map(each, ["mask", "add", "add data", "replace", "halve data", "zero", "remove"]),
]


def nothing(model):
    pass


def clip_groups(params):
    torch.nn.utils.clip_grad_norm_(params, 0.125)


def halve_groups(params):
    for param in params:
        if param.grad is not None:
            param.grad = param.grad * 0.5


def decay_groups(params):
    for param in params:
        if param.grad is not None:
            param.grad.add_(0.5 * param.detach())


def zero_groups(params):
    params[0].grad = None
    if params[1].grad is not None:
        params[1].grad.zero_()


GROUP_CHANGES = [nothing, clip_groups, halve_groups, decay_groups, zero_groups]


def train(model, optimizer, backward, change, passes=1, of_groups=nothing, clears=True):
    """Train three steps, with a change of the model's gradients and one of those in the groups in each of them."""
    for step in range(3):
        for each in range(passes):
            backward(loss_of(model, step + each), optimizer)
        change(model)
        of_groups(optimizer.param_groups[0]["params"])
        optimizer.step()
        assert not amp.step_was_skipped(optimizer)
        if clears:
            optimizer.zero_grad()


def plain_backward(loss, optimizer):
    loss.backward()


def trained_by_hand(setting, *how, **options):
    """Return the weights before and after a training in float64."""
    model, optimizer = begin_by_hand(setting)
    before = weights_of(model)
    train(model, optimizer, plain_backward, *how, **options)
    return before, weights_of(model)


def masters_of(model, optimizer):
    """Return copies of the float32 weights by name."""
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, [master.detach().clone() for master in amp.master_params(optimizer)]))


def distance(first, second):
    return sum(float((first[name].double() - second[name].double()).pow(2).sum()) for name in second) ** 0.5


def check(setting, found, before, expected, moved=0.0):
    """Compare weights after a training with those of one by hand; ``moved`` is another length for the tolerance."""
    rounding = 4 * torch.finfo(setting.low).eps if setting.level == "O3" else 0.0
    assert distance(found, expected) <= tolerance(setting) * max(moved, distance(expected, before)) + rounding


def check_changes(setting, found, change, passes=1, of_groups=nothing):
    """Do the same; and see that the change has an effect."""
    before, expected = trained_by_hand(setting, change, passes, of_groups)
    _, unchanged = trained_by_hand(setting, nothing, passes)
    moved = distance(unchanged, before)
    assert distance(expected, unchanged) > 0.1 * moved
    check(setting, found, before, expected, moved)


@paired("setting, change, of_groups, passes, options", SETTINGS + STORED, CHANGES, GROUP_CHANGES, [1, 2], SCALES)
def test_what_a_script_changes_in_the_model_and_then_in_the_groups_is_obeyed(
    setting, change, of_groups, passes, options
):
    with session_of(setting):
        model, optimizer = begin(setting, **options)
        train(model, optimizer, loops.backward, change, passes, of_groups)
        found = masters_of(model, optimizer)
    check_changes(setting, found, change, passes, of_groups)


IN_A_BLOCK = [freeze_rows, remove_some, clear_the_model, one_of_them, *map(each, ["mask", "remove", "zero"])]


@paired(
    "setting, change, scale, is_clipped",
    settings_of("O0", "O1", "O2", "O4", "O5") + STORED,
    IN_A_BLOCK,
    [1024.0, "dynamic", 1.0],
    [False, True],
)
def test_what_a_script_changes_within_a_block_before_its_backward_pass_is_obeyed(setting, change, scale, is_clipped):
    def run(model, optimizer, block):
        for step in range(3):  # gradients are not cleared elsewhere
            with block(loss_of(model, step), optimizer) as loss:
                (change if step else nothing)(model)
                loss.backward()
            if is_clipped:
                clip_norm(model)
                loss_of(model, step + 1).backward()
            optimizer.step()

    @contextlib.contextmanager
    def no_block(loss, optimizer):
        yield loss

    model, optimizer = begin_by_hand(setting)
    before = weights_of(model)
    run(model, optimizer, no_block)
    expected = weights_of(model)
    with session_of(setting):
        model, optimizer = begin(setting, loss_scale=scale)
        run(model, optimizer, amp.scale_loss)
        check(setting, masters_of(model, optimizer), before, expected)


def add_up(scaled_loss, model, in_place=True):
    """Do what ``backward`` does to gradients."""
    params = list(model.parameters())
    for param, gradient in zip(params, torch.autograd.grad(scaled_loss, params)):
        if param.grad is None:
            param.grad = gradient
        elif in_place:
            param.grad.add_(gradient)
        else:
            param.grad = param.grad + gradient


@each_setting_and_stored
@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_that_a_script_itself_adds_up_within_a_block_are_those_of_backward(setting, in_place):
    found = []
    for by_script in (False, True):
        with session_of(setting):
            model, optimizer = begin(setting, loss_scale=64.0)
            before = weights_of(model)
            for step in range(3):
                with amp.scale_loss(loss_of(model, step), optimizer) as scaled_loss:
                    add_up(scaled_loss, model, in_place) if by_script else scaled_loss.backward()
            optimizer.step()
            found.append(weights_of(model))
    check(setting, found[1], before, found[0])


@settings_at("O1", "O2", "O5", stored=True)
def test_an_overflow_in_what_a_script_adds_within_a_block_skips_the_step(setting, session):
    model, optimizer = begin(setting, loss_scale="dynamic")
    before = weights_of(model)
    for factor in (1.0, float("inf")):
        with amp.scale_loss(loss_of(model, 0), optimizer) as scaled_loss:
            add_up(scaled_loss * factor, model)
    optimizer.step()
    assert amp.step_was_skipped(optimizer)
    assert distance(before, weights_of(model)) == 0.0


@paired("setting, change, steps_first", settings_of("O0", "O2", "O5") + STORED, CHANGES, [0, 1])
def test_what_a_script_changes_reaches_every_optimizer_of_a_param(setting, change, steps_first):
    with session_of(setting):
        model = smooth_network(setting)
        optimizers = [torch.optim.SGD(model.parameters(), lr=RATE / 2) for _ in range(2)]
        initialize(setting, model, optimizers, loss_scale=64.0)
        for step in range(3):
            loops.backward(loss_of(model, step), optimizers)
            change(model)
            optimizers[steps_first].step()
            optimizers[1 - steps_first].step()
            optimizers[step % 2].zero_grad()
        found = masters_of(model, optimizers[0])
    check_changes(setting, found, change)


# -- what scripts read -------------------------------------------------------------------------------------------------


def check_gradients(setting, model, reference):
    """Compare the gradients with those of a model by hand."""
    for param, own in zip(model.parameters(), reference.parameters()):
        assert param.grad.dtype is param.dtype and param.grad.shape == param.shape
        assert param.grad.device == param.device and not param.grad.requires_grad
        assert float((param.grad.double() - own.grad).norm()) <= tolerance(setting) * float(own.grad.norm())


@paired("setting, passes, options", SETTINGS + STORED, [1, 2], SCALES)
def test_a_loop_that_logs_the_norms_of_all_gradients_runs_and_sees_true_ones(setting, passes, options):
    reference, _ = begin_by_hand(setting)
    for each in range(passes):
        loss_of(reference, each).backward()
    total = torch.cat([param.grad.view(-1) for param in reference.parameters()]).norm()
    with session_of(setting):
        model, optimizer = begin(setting, **options)
        for each in range(passes):
            loops.backward(loss_of(model, each), optimizer)
        for param, own in zip(model.parameters(), reference.parameters()):
            assert float(param.grad.data.norm()) == pytest.approx(float(own.grad.norm()), rel=tolerance(setting))
        check_gradients(setting, model, reference)
        found = torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1e6)
        assert float(found) == pytest.approx(float(total), rel=tolerance(setting))


def clips_mixed_dtypes():
    """Return whether torch's own ``clip_grad_norm_`` takes gradients of two dtypes (not in torch 1.5)."""
    params = [torch.nn.Parameter(torch.zeros(1, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    for param in params:
        param.grad = torch.ones_like(param)
    try:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
    except RuntimeError:
        return False
    return True


@pytest.mark.skipif(not clips_mixed_dtypes(), reason="this torch clips gradients of one dtype only")
@each_setting_and_stored
def test_a_batch_norms_gradients_are_clipped_together_with_all_others(setting, session):
    model, (x, target) = make_network(setting), make_batch(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    initialize(setting, model, optimizer)
    before = [master.detach().clone() for master in amp.master_params(optimizer)]
    loops.backward(torch.nn.functional.cross_entropy(model(x), target), optimizer)
    norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), 2.0**-6)
    assert float(norm) > 2.0**-4
    optimizer.step()
    moves = [old - new.detach() for old, new in zip(before, amp.master_params(optimizer))]
    moved = float(torch.cat([move.reshape(-1).double() for move in moves]).norm())
    slack = 64 * torch.finfo(setting.low).eps if setting.level == "O3" else 2.0**-12
    assert moved <= 2.0**-6 * (1 + tolerance(setting)) + slack


READS = {"norm": lambda grad: grad.data.norm(), "clone": lambda grad: grad.clone(), "keep": lambda grad: grad}


@each_setting_and_stored
@pytest.mark.parametrize("read", sorted(READS))
def test_reading_gradients_changes_no_bit_of_a_training(setting, read, session):
    kept, found = [], []

    def log(model):
        kept.extend(READS[read](param.grad) for param in model.parameters())

    for use in (log, nothing):
        model, optimizer = begin(setting)
        train(model, optimizer, loops.backward, use, 2)
        found.append(masters_of(model, optimizer))
    assert differing(*found) == [] and len(kept) == 12
    assert all(isinstance(each, torch.Tensor) for each in kept)


@paired("setting, reads", SETTINGS + STORED, [False, True])
def test_gradients_that_are_not_cleared_add_up_whether_they_are_read_after_a_step_or_not(setting, reads):
    reference, by_hand = begin_by_hand(setting)
    before = weights_of(reference)
    with session_of(setting):
        model, optimizer = begin(setting, loss_scale=128.0)
        for step in range(3):
            loss_of(reference, step).backward()
            by_hand.step()
            loops.step(loss_of(model, step), optimizer)
            if reads:
                check_gradients(setting, model, reference)
        check(setting, masters_of(model, optimizer), before, weights_of(reference))


@each_setting_and_stored
def test_a_param_that_a_pass_does_not_use_has_a_zero_gradient_where_gradients_are_set_to_zero(setting, session):
    exact = Exact(setting)
    exact.optimizer.param_groups[0]["momentum"] = 0.5
    exact.backward(2.0**-2)
    exact.optimizer.step()
    exact.optimizer.zero_grad(set_to_none=False)
    loops.step(exact.model.a.to(setting.high).sum(), exact.optimizer)
    assert torch.equal(exact.masters()[1], 1.0 - 1.5 * INPUT.double() * 2.0**-2), "momentum moves it"


# -- float32 gradients of masters --------------------------------------------------------------------------------------


class Exact:
    """A ``Product`` with masters whose weights are 1, so that gradients are the inputs' products with a factor."""

    def __init__(self, setting, **options):
        self.setting = setting
        self.model = Product(1.0).to(setting.high)
        with torch.no_grad():
            for param in self.model.parameters():
                param.fill_(1.0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        initialize(setting, self.model, self.optimizer, **dict({"loss_scale": 2.0**12}, **options))

    def backward(self, factor, is_scaled=True):
        loss = factor * self.model(INPUT.to(self.setting.high)).sum()
        with amp.scale_loss(loss, self.optimizer) if is_scaled else contextlib.nullcontext(loss) as scaled_loss:
            scaled_loss.backward()

    def masters(self):
        return [master.detach().double() for master in amp.master_params(self.optimizer)]


#: Together they need more bits than any half dtype has; the last is 0 in float16 without a loss scale.
FACTORS = [2.0**-2, 2.0**-14, 2.0**-22]


def read_all(model):
    for param in model.parameters():
        param.grad.norm()


def clip_loosely(model):
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1e6)


def write_the_same(model):
    for param in model.parameters():
        param.grad = param.grad.clone()


@with_masters
@pytest.mark.parametrize("options", SCALES, ids=str)
@pytest.mark.parametrize("use", [nothing, read_all, clip_loosely, write_the_same])
@pytest.mark.parametrize("factors", [FACTORS, FACTORS[1:], FACTORS[2:]], ids=["wide", "small", "tiny"])
def test_masters_step_on_exact_float32_gradients_where_nothing_was_changed(setting, use, factors, options, session):
    exact = Exact(setting, **options)
    for factor in factors:
        exact.backward(factor)
        use(exact.model)
    gradient = INPUT.double() * sum(factors)
    for param in exact.model.parameters():
        if param.grad is None:
            pytest.fail("the half gradient is gone")
        assert torch.equal(param.grad.double(), gradient.to(param.dtype).double())
    exact.optimizer.step()
    assert all(torch.equal(master, 1.0 - gradient) for master in exact.masters())


@with_masters
def test_a_changed_gradient_costs_the_others_no_bit(setting, session):
    exact = Exact(setting)
    for factor in FACTORS:
        exact.backward(factor)
    exact.model.a.grad.mul_(0.0)
    exact.optimizer.step()
    a, b = exact.masters()
    assert torch.equal(a, torch.ones_like(a)) and torch.equal(b, 1.0 - INPUT.double() * sum(FACTORS))


@with_masters
def test_a_gradient_that_is_set_to_zero_is_zero_at_its_master_where_half_has_rounded_it_to_zero(setting, session):
    model, info = torch.nn.Linear(2, 1, bias=False).to(setting.high), torch.finfo(setting.low)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    initialize(setting, model, optimizer, loss_scale=1024.0)
    factors = torch.tensor([[1.0, info.tiny * info.eps / 4]], dtype=setting.high)
    if not holds_nonzero(factors[:, 1] * 1024.0):
        pytest.skip("this device makes subnormal numbers 0")
    loops.backward((model.weight.to(setting.high) * factors).sum(), optimizer)
    (master,) = amp.master_params(optimizer)
    assert torch.equal(master.grad, factors)
    model.weight.grad.zero_()
    (master,) = amp.master_params(optimizer)
    assert not holds_nonzero(master.grad)


@with_masters
@pytest.mark.parametrize("is_value_read", [False, True])
def test_a_master_in_param_groups_shows_each_write_to_a_kept_gradient_of_its_half_param(
    setting, is_value_read, session
):
    exact = Exact(setting)
    exact.backward(2.0**-2)
    kept, master = exact.model.a.grad, exact.optimizer.param_groups[0]["params"][0]
    for halvings in (1, 2, 3):
        kept.mul_(0.5)
        if is_value_read:
            assert holds_nonzero(master)
        assert torch.equal(master.grad.double(), INPUT.double() * 2.0 ** (-2 - halvings))
    kept.mul_(0.5)
    exact.optimizer.step()
    assert torch.equal(exact.masters()[0], 1.0 - INPUT.double() * 2.0**-6)


def double_in_place(grad):
    grad.mul_(2.0)


def double_data(grad):
    grad.data.mul_(2.0)


def double_memory(grad):
    grad.detach().numpy()[...] *= 2.0


@with_masters
@pytest.mark.parametrize("double", [double_in_place, double_data, double_memory])
@pytest.mark.parametrize("is_scaled, are_masters_got_first", [(True, True), (True, False), (False, False)])
def test_masters_that_a_script_clips_keep_the_bits_that_half_has_not(
    setting, is_scaled, are_masters_got_first, double, session
):
    exact = Exact(setting)
    masters = list(amp.master_params(exact.optimizer))
    for factor in FACTORS if is_scaled else FACTORS[:1]:
        exact.backward(factor, is_scaled)
    total = sum(FACTORS) if is_scaled else FACTORS[0]
    read_all(exact.model)
    for master in masters if are_masters_got_first else amp.master_params(exact.optimizer):
        double(master.grad)
    exact.optimizer.step()
    assert all(torch.equal(master, 1.0 - 2.0 * INPUT.double() * total) for master in exact.masters())


@each_setting_and_stored
def test_a_gradient_that_was_read_shows_what_its_masters_were_clipped_to(setting, session):
    model, optimizer = begin(setting)
    loops.backward(loss_of(model, 0), optimizer)
    before = [param.grad.double().clone() for param in model.parameters()]
    norm = torch.stack([grad.norm() for grad in before]).norm()
    torch.nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), float(norm) * 0.25)
    for param, grad in zip(model.parameters(), before):
        if features.is_version_within(oldest="1.8"):  # older ones write through ``.data``, seen at the next pass
            assert torch.allclose(param.grad.double(), grad * 0.25, rtol=tolerance(setting), atol=1e-6)


@each_setting_and_stored
def test_a_gradient_that_is_removed_from_its_master_is_gone_though_it_was_read(setting, session):
    model, optimizer = begin(setting)
    loops.backward(loss_of(model, 0), optimizer)
    assert all(param.grad is not None for param in model.parameters())
    start = weights_of(model)
    for master in amp.master_params(optimizer):
        master.grad = None
    optimizer.step()
    assert all(param.grad is None for param in model.parameters())
    assert not differing(start, weights_of(model))


# -- skipped steps -----------------------------------------------------------------------------------------------------


@cast_weights
def test_a_change_does_not_undo_the_skip_of_an_overflow(setting, session):
    exact = Exact(setting, loss_scale="dynamic")
    exact.backward(float("inf"))
    for param in exact.model.parameters():
        assert not bool(torch.isfinite(param.grad).all())
        param.grad = torch.zeros_like(param)
    exact.optimizer.step()
    assert amp.step_was_skipped(exact.optimizer)
    assert all(torch.equal(master, torch.ones_like(master)) for master in exact.masters())
    exact.optimizer.zero_grad()
    exact.backward(2.0**-4)
    exact.optimizer.step()
    assert all(torch.equal(master, 1.0 - INPUT.double() * 2.0**-4) for master in exact.masters())


# -- memory ------------------------------------------------------------------------------------------------------------


@each_setting
def test_free_half_grads_trains_alike_bit_for_bit_and_leaves_no_half_gradients_of_masters(setting, session):
    def run(**options):
        model, batch = make_network(setting), make_batch(setting)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
        initialize(setting, model, optimizer, **options)
        for _ in range(2):
            train_step(model, optimizer, batch)
        optimizer.zero_grad()
        loops.backward(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]), optimizer)
        has_gradients = [param.grad is not None for param in model.parameters()]
        optimizer.step()
        return has_gradients, weights_of(model)

    (has_gradients, found), (has_all, expected) = run(free_half_grads=True), run()
    assert differing(found, expected) == []
    assert all(has_all)
    assert has_gradients == [not setting.has_masters] * 2 + [True] * 2 + [not setting.has_masters] * 2


WIDTH = 256
PROFILES = features.is_version_within(oldest="1.10")


def held_between_block_and_step(setting, read=False, **options):
    """Return the bytes per param that the allocator has handed out and not got back: weights, masters, gradients."""
    gc.collect()  # what is freed in the profile must have been made in it
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False).to(setting.high)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        initialize(setting, model, optimizer, loss_scale=128.0, **options)
        x = torch.ones(1, WIDTH).to(setting.high)
        for step in range(3):
            optimizer.zero_grad()
            with amp.scale_loss(model(x).sum() / WIDTH, optimizer) as scaled_loss:
                scaled_loss.backward()
            del scaled_loss
            if step < 2:
                optimizer.step()
        if read:
            float(model.weight.grad.norm())
        gc.collect()
    # Not `function_events`: what happens in the microsecond between two operations is added to both (torch 2.2).
    records = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    return sum(record.nbytes() for record in records) / WIDTH**2


def bytes_of(dtype):
    return torch.empty((), dtype=dtype).element_size()


@pytest.mark.skipif(not PROFILES, reason="the profiler of this torch counts no memory")
@each_setting
@pytest.mark.parametrize("read, options", [(False, {}), (True, {}), (False, {"free_half_grads": True})])
def test_between_block_and_step_a_param_holds_two_half_gradients_more_than_its_masters_if_it_is_read(
    setting, read, options
):
    high, low = bytes_of(setting.high), bytes_of(setting.low)
    with session_of(setting):
        held = held_between_block_and_step(setting, read, **options)
    if setting.has_masters:
        least = low + 2 * high  # half weights, masters and their gradients
        assert held == pytest.approx(least + (2 * low if read else 0), abs=0.1)
    else:
        assert held == pytest.approx(2 * (low if setting.level == "O3" else high), abs=0.1)


@with_masters
def test_a_gradient_that_is_removed_after_the_step_stays_removed(setting, session):
    exact = Exact(setting)
    exact.backward(2.0**-4)
    exact.optimizer.step()
    assert all(param.grad is not None for param in exact.model.parameters())
    exact.backward(2.0**-4)
    exact.optimizer.step()
    for param in exact.model.parameters():
        param.grad = None
    assert all(param.grad is None for param in exact.model.parameters())


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no Tensor.grad_dtype")
@pytest.mark.parametrize("is_set_before", [True, False])
@pytest.mark.parametrize("is_any", [True, False])
@cast_weights
def test_half_params_that_accumulate_gradients_in_float32_train_as_others(setting, is_any, is_set_before, session):
    def set_dtypes():
        for param in model.parameters():
            param.grad_dtype = None if is_any else setting.high

    model = torch.nn.Linear(4, 1).to(setting.high)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-3, momentum=0.5)
    if is_set_before:
        set_dtypes()
    initialize(setting, model, optimizer, loss_scale=64.0)
    if not is_set_before:
        set_dtypes()
    x = torch.tensor([[1.0, 2.0, -1.0, 0.5]], dtype=setting.high)
    for _ in range(3):
        for _ in range(2):
            loops.backward(model(x).sum(), optimizer)
        assert torch.equal(model.weight.grad.to(setting.high), 2 * x)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.state_dict()["weight"], 1.0 - 2.0**-3 * (1.0 + 1.5 + 1.75) * 2 * x)


@settings_at("O0", "O1", "O2", "O5", stored=True)
@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("end", ["freed", "freed unread", "freed and cleared", "group", "reset"])
def test_a_gradient_keeps_its_values_or_those_written_in_place_when_its_optimizer_goes(setting, factor, end, session):
    model = Product(1.0).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    initialize(setting, model, optimizer, loss_scale=1.0)
    loops.backward(model(INPUT.to(setting.high)).float().sum(), optimizer)
    params = list(model.parameters())
    if end == "freed and cleared":
        expected = [torch.zeros_like(param, dtype=setting.high) for param in params]
    else:
        expected = [param.grad.clone().mul_(factor).to(setting.high) for param in params]
    for param in params if factor != 1.0 else ():
        param.grad.mul_(factor)
    if end == "group":
        spare = torch.nn.Parameter(torch.ones(1, dtype=setting.high))
        optimizer.param_groups[0]["params"] = [spare]
        optimizer.step()
    elif end == "reset":
        ampcompat.reset()
    else:
        del optimizer
        gc.collect()
    if end == "freed and cleared":
        assert all(param.grad is not None for param in params)
        model.zero_grad()
    if end in ("freed unread", "freed and cleared"):  # but by the step of the next optimizer
        second = torch.optim.SGD(params, lr=1.0)
        initialize(setting, model, second, loss_scale=1.0)
        before = [param.detach().to(setting.high, copy=True) for param in params]
        second.step()
        found = [value - param.detach().to(setting.high) for param, value in zip(params, before)]
    else:
        found = [param.grad.to(setting.high) for param in params]
    assert all(map(torch.equal, found, expected))
