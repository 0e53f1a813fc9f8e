"""amp.accumulate: groups of iterations equal their large batch, whatever the level, the remainder, the overflow."""

import math

import pytest
import torch
from helpers.networks import each_setting, holds_nonzero, initialize, make_batch, session_of, settings_at
from hypothesis import given, settings, strategies

import ampcompat
from ampcompat import amp

SCALE = 2.0**4
#: Of the largest weight, by level: what rounding a gradient of a part instead of the whole can do.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 1e-2, "O4": 1.6e-2, "O5": 1.6e-2}


def make_model(setting=None):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return model if setting is None else model.to(setting.high)


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def groups_of(batches, steps):
    return [batches[index : index + steps] for index in range(0, len(batches), steps)]


def train_large(model, batches, steps, rate=0.5):
    """Train a float64 model on each group as one batch, without amp; return its weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5)
    for group in groups_of(batches, steps):
        optimizer.zero_grad()
        images, labels = (torch.cat(parts) for parts in zip(*group))
        loss_of(model, (images.double(), labels)).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def accumulate_all(model, optimizer, batches, accumulation, inject=None):
    """Run the loop; return the iterations that were due."""
    due = []
    for index, batch in enumerate(batches):
        loss = loss_of(model, batch)
        if index == inject:
            loss = loss * float("inf")
        with accumulation.scale_loss(loss) as scaled_loss:
            scaled_loss.backward()
        if accumulation.step():
            due.append(index)
    return due


def opened(setting, **options):
    model = make_model(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    initialize(setting, model, optimizer, **options)
    return model, optimizer


def weights(optimizer):
    return [param.detach().double() for param in amp.master_params(optimizer)]


# -- equal to the large batch ------------------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("count, steps", [(8, 4), (10, 4), (3, 5)])
def test_a_group_equals_its_large_batch_with_a_remainder_too(setting, count, steps):
    batches = [make_batch(setting, seed=index) for index in range(count)]
    reference = train_large(make_model().double(), batches, steps)
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        due = accumulate_all(model, optimizer, batches, amp.accumulate(optimizer, steps, total=count))
        assert due == [group[-1] for group in groups_of(list(range(count)), steps)]
        for found, wanted in zip(weights(optimizer), reference):
            assert (found - wanted).abs().max() <= TOLERANCE[setting.level] * max(1.0, wanted.abs().max())


@each_setting
def test_an_unknown_end_is_finished_by_hand(setting):
    batches = [make_batch(setting, seed=index) for index in range(6)]
    reference = train_large(make_model().double(), batches, 4)
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        accumulation = amp.accumulate(optimizer, 4)
        accumulate_all(model, optimizer, batches, accumulation)
        assert accumulation.finish() and not accumulation.finish()
        assert all(param.grad is None or not holds_nonzero(param.grad) for param in amp.master_params(optimizer))
        for found, wanted in zip(weights(optimizer), reference):
            assert (found - wanted).abs().max() <= TOLERANCE[setting.level] * max(1.0, wanted.abs().max())


@pytest.mark.parametrize("loss_scale", [1.0, SCALE, "dynamic"])
@pytest.mark.parametrize("is_complete", [True, False], ids=["step", "finish"])
def test_optimizers_that_share_a_weight_each_step_on_its_gradient_once(loss_scale, is_complete):
    model = torch.nn.Linear(2, 1, bias=False)
    optimizers = [torch.optim.SGD(model.parameters(), lr=rate) for rate in (2.0**-4, 2.0**-5)]
    amp.initialize(model, optimizers, opt_level="O0", loss_scale=loss_scale, verbosity=0)
    before = model.weight.detach().clone()
    accumulation = amp.accumulate(optimizers, 2 if is_complete else 4)
    for _ in range(2):
        with accumulation.scale_loss(model(torch.ones(1, 2)).sum()) as scaled_loss:
            scaled_loss.backward()
        due = accumulation.step()
    assert due is is_complete and accumulation.finish() is not is_complete
    assert (before - model.weight - (2.0**-4 + 2.0**-5)).abs().max() <= 1e-6
    assert model.weight.grad is None or not holds_nonzero(model.weight.grad)


@each_setting
def test_an_iteration_without_a_backward_pass_adds_nothing_even_when_it_is_due(setting):
    batches = [make_batch(setting, seed=index) for index in range(3)]
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        accumulation = amp.accumulate(optimizer, 3)
        accumulate_all(model, optimizer, batches[:2], accumulation)
        assert accumulation.step()
        found = weights(optimizer)
    reference = make_model().double()
    plain = torch.optim.SGD(reference.parameters(), lr=0.5)
    (sum(loss_of(reference, (x.double(), y)) for x, y in batches[:2]) / 3).backward()
    plain.step()
    for mine, wanted in zip(found, reference.parameters()):
        assert (mine - wanted.detach()).abs().max() <= TOLERANCE[setting.level] * max(1.0, wanted.abs().max())


# -- overflow ----------------------------------------------------------------------------------------------------------


@settings_at("O1", "O2", "O3")
@pytest.mark.parametrize("place", range(3))
def test_an_overflow_anywhere_skips_the_group_and_backs_off_once(setting, place):
    batches = [make_batch(setting, seed=index) for index in range(6)]
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale="dynamic", init_scale=SCALE)
        before = weights(optimizer)
        accumulation = amp.accumulate(optimizer, 3, total=6)
        accumulate_all(model, optimizer, batches[:3], accumulation, inject=place)
        assert amp.step_was_skipped(optimizer)
        assert all(map(torch.equal, weights(optimizer), before))
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": SCALE / 2, "unskipped": 0}
        accumulate_all(model, optimizer, batches[3:], accumulation)
        assert not amp.step_was_skipped(optimizer)
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": SCALE / 2, "unskipped": 1}
        assert all(torch.isfinite(param).all() for param in weights(optimizer))


@settings_at("O1", "O2")
def test_losses_with_scalers_of_their_own_keep_them_apart(setting):
    batches = [make_batch(setting, seed=index) for index in range(2)]
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale="dynamic", init_scale=SCALE, num_losses=2)
        accumulation = amp.accumulate(optimizer, 2)
        for index, batch in enumerate(batches):
            for loss_id in (0, 1):
                loss = loss_of(model, batch) * (float("inf") if (index, loss_id) == (0, 0) else 1.0)
                with accumulation.scale_loss(loss, loss_id=loss_id) as scaled_loss:
                    scaled_loss.backward()
            accumulation.step()
        assert amp.step_was_skipped(optimizer)
        scales = [state["loss_scale"] for state in amp.state_dict().values()]
        assert scales == [SCALE / 2, SCALE]


@settings_at("O1", "O2")
def test_an_overflow_is_remembered_when_a_later_pass_of_the_group_raises(setting):
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale="dynamic", init_scale=SCALE)
        before = weights(optimizer)
        accumulation = amp.accumulate(optimizer, 2)
        accumulate_all(model, optimizer, [make_batch(setting)], accumulation, inject=0)
        with pytest.raises(ZeroDivisionError):
            with accumulation.scale_loss(loss_of(model, make_batch(setting))):
                raise ZeroDivisionError
        accumulate_all(model, optimizer, [make_batch(setting)], accumulation)
        assert amp.step_was_skipped(optimizer)
        assert all(map(torch.equal, weights(optimizer), before))


# -- what stands around it ---------------------------------------------------------------------------------------------


@each_setting
def test_what_is_clipped_is_the_gradient_of_the_large_batch(setting):
    batches = [make_batch(setting, seed=index) for index in range(4)]
    reference = make_model().double()
    images, labels = (torch.cat(parts) for parts in zip(*batches))
    loss_of(reference, (images.double(), labels)).backward()
    expected = math.sqrt(sum(float(param.grad.pow(2).sum()) for param in reference.parameters()))
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        accumulation = amp.accumulate(optimizer, 4)
        for batch in batches:
            with accumulation.scale_loss(loss_of(model, batch)) as scaled_loss:
                scaled_loss.backward()
            if accumulation.is_due():
                found = float(torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1e-3))
            accumulation.step()
    assert abs(found - expected) <= 10 * TOLERANCE[setting.level] * expected


def test_a_scheduler_steps_with_the_optimizer_and_warns_of_nothing(level):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    accumulation = amp.accumulate(optimizer, 2, total=5)
    for index in range(5):
        with accumulation.scale_loss(loss_of(model, make_batch(seed=index))) as scaled_loss:
            scaled_loss.backward()
        if accumulation.step():
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1.0 / 8


def test_amp_disabled_accumulates_all_the_same():
    batches = [make_batch(seed=index) for index in range(5)]
    reference = train_large(make_model().double(), batches, 2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    amp.initialize(model, optimizer, enabled=False)
    accumulate_all(model, optimizer, batches, amp.accumulate(optimizer, 2, total=5))
    for found, wanted in zip(model.parameters(), reference):
        assert (found.double() - wanted).abs().max() <= 1e-6


def test_gradients_wait_scaled_where_that_is_equal_and_in_float32_masters_otherwise(level):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=SCALE)
    accumulation = amp.accumulate(optimizer, 2)
    accumulate_all(model, optimizer, [make_batch()], accumulation)
    assert optimizer._amp_stash.params_have_scaled_gradients == (level in ("O0", "O1", "O4"))


# -- counting ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(strategies.integers(1, 7), strategies.integers(1, 40), strategies.data())
def test_every_loss_is_divided_by_what_really_shares_its_step(steps, total, data):
    start = data.draw(strategies.integers(0, total - 1))
    accumulation, _ = counting(steps, total, start)
    sizes, due = [], []
    for _ in range(start, total):
        sizes.append(accumulation.size)
        due.append(accumulation.is_due())
        assert accumulation.step() == due[-1]
    groups, current = [], []
    for iteration in range(start, total):
        current.append(iteration)
        if (iteration + 1) % steps == 0 or iteration + 1 == total:
            groups.append(current)
            current = []
    assert sizes == [len(group) for group in groups for _ in group]
    assert due == [iteration == group[-1] for group in groups for iteration in group]
    assert accumulation.iteration == 0 and accumulation.size == min(steps, total)


def counting(*arguments):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    amp.initialize([], optimizer, enabled=False)
    return amp.accumulate(optimizer, *arguments), optimizer


def test_a_run_resumed_at_its_end_begins_anew():
    assert counting(4, 10, 10)[0].iteration == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0,), "steps to be a whole number from 1 up, not 0"),
        ((2.0,), "steps"),
        ((2, 0), "total"),
        ((2, 4, -1), "start"),
        ((2, 4, 5), "start=5 beyond total=4"),
    ],
)
def test_what_cannot_be_counted_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        counting(*arguments)


def test_something_else_than_an_optimizer_is_an_error():
    with pytest.raises(TypeError, match="an optimizer or a list of them, not Linear"):
        amp.accumulate(torch.nn.Linear(1, 1), 2)


def test_before_initialize_it_says_what_to_call():
    ampcompat.reset()
    accumulation = amp.accumulate(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), 2)
    with pytest.raises(RuntimeError, match="before amp.initialize"):
        with accumulation.scale_loss(torch.zeros(())):
            pass
