"""Several passes that share an optimizer step equal their large batch, unscaled one by one or together."""

import math

import pytest
import torch
from helpers.networks import each_setting, initialize, make_batch, session_of, settings_at

from ampcompat import amp

SCALE = 2.0**4
#: Of the largest weight, by level: what rounding a gradient of a part instead of the whole can do.
TOLERANCE = {"O0": 1e-6, "O1": 2e-3, "O2": 2e-3, "O3": 1e-2, "O4": 1.6e-2, "O5": 1.6e-2}

delays = pytest.mark.parametrize("delays", [False, True], ids=["each pass unscaled", "delay_unscale"])


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


def backward(model, optimizer, group, delays, inject=None):
    """Run the passes of a group."""
    for index, batch in enumerate(group):
        loss = loss_of(model, batch) / len(group) * (float("inf") if index == inject else 1.0)
        with amp.scale_loss(loss, optimizer, delay_unscale=delays and index < len(group) - 1) as scaled_loss:
            scaled_loss.backward()


def opened(setting, **options):
    model = make_model(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    initialize(setting, model, optimizer, **options)
    return model, optimizer


def weights(optimizer):
    return [param.detach().double() for param in amp.master_params(optimizer)]


@each_setting
@delays
@pytest.mark.parametrize("count, steps", [(8, 4), (10, 4), (3, 5)])
def test_a_group_equals_its_large_batch_with_a_remainder_too(setting, delays, count, steps):
    batches = [make_batch(setting, seed=index) for index in range(count)]
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        for group in groups_of(batches, steps):
            backward(model, optimizer, group, delays)
            optimizer.step()
            optimizer.zero_grad()
        found = weights(optimizer)
    for mine, wanted in zip(found, train_large(make_model().double(), batches, steps)):
        assert (mine - wanted).abs().max() <= TOLERANCE[setting.level] * max(1.0, wanted.abs().max())


@settings_at("O1", "O2", "O3")
@delays
@pytest.mark.parametrize("place", range(3))
def test_an_overflow_anywhere_skips_the_group_and_backs_off_once(setting, delays, place, session):
    batches = [make_batch(setting, seed=index) for index in range(6)]
    model, optimizer = opened(setting, loss_scale="dynamic", init_scale=SCALE)
    before = weights(optimizer)
    backward(model, optimizer, batches[:3], delays, inject=place)
    optimizer.step()
    assert amp.step_was_skipped(optimizer)
    assert all(map(torch.equal, weights(optimizer), before))
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == SCALE / 2
    optimizer.zero_grad()
    backward(model, optimizer, batches[3:], delays)
    optimizer.step()
    assert not amp.step_was_skipped(optimizer)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == SCALE / 2
    assert all(torch.isfinite(param).all() for param in weights(optimizer))


@settings_at("O1", "O2")
def test_losses_with_scalers_of_their_own_keep_them_apart(setting, session):
    batches = [make_batch(setting, seed=index) for index in range(2)]
    model, optimizer = opened(setting, loss_scale="dynamic", init_scale=SCALE, num_losses=2)
    for index, batch in enumerate(batches):
        for loss_id in (0, 1):
            loss = loss_of(model, batch) * (float("inf") if (index, loss_id) == (0, 0) else 1.0)
            with amp.scale_loss(loss, optimizer, loss_id=loss_id) as scaled_loss:
                scaled_loss.backward()
    optimizer.step()
    assert amp.step_was_skipped(optimizer)
    scales = [state["loss_scale"] for state in amp.state_dict().values()]
    assert scales == [SCALE / 2, SCALE]


@each_setting
@delays
def test_what_is_clipped_is_the_gradient_of_the_large_batch(setting, delays):
    batches = [make_batch(setting, seed=index) for index in range(4)]
    reference = make_model().double()
    images, labels = (torch.cat(parts) for parts in zip(*batches))
    loss_of(reference, (images.double(), labels)).backward()
    expected = math.sqrt(sum(float(param.grad.pow(2).sum()) for param in reference.parameters()))
    with session_of(setting):
        model, optimizer = opened(setting, loss_scale=SCALE)
        backward(model, optimizer, batches, delays)
        found = float(torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1e-3))
        optimizer.step()
    assert abs(found - expected) <= 10 * TOLERANCE[setting.level] * expected
