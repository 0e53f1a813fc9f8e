"""Specification 3.2 and 7.11: optimizers that neither ``initialize`` nor ``scale_loss`` got, as of a center loss."""

import functools
import gc
import threading

import pytest
import torch
from helpers import loops
from helpers.networks import initialize, session_of, settings_at

from ampcompat import amp
from ampcompat.engine.session import scale_loss
from ampcompat.engine.session.optimizers_without_amp import leaves_of
from ampcompat.support.torch_compat import step_hooks

every_level = settings_at("O0", "O1", "O2", "O3", "O4", "O5")
BATCH = [[1.0, -2.0], [0.5, 3.0], [-1.0, 1.0]]


class CenterLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = torch.nn.Parameter(torch.tensor([[0.5, -0.25], [1.0, 2.0]]))

    def forward(self, features):
        return (features.float()[:, None, :] - self.centers[None]).pow(2).sum(2).mean()


def sgd(params):
    return torch.optim.SGD(params, lr=0.125)


def make():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 2), CenterLoss()


def trained_centers(made_late, unused, begin, backward):
    """Return the centers after a training in which ``scale_loss`` gets only the model's optimizer."""
    model, center_loss = make()
    optimizers = [sgd(model.parameters())] + [sgd(center_loss.parameters())] * (not made_late)
    begin(model, optimizers[0])
    for number in range(made_late + 4):
        if number == made_late > 0:
            optimizers.append(sgd(center_loss.parameters()))
        for optimizer in optimizers:
            optimizer.zero_grad()
        features = model(torch.tensor(BATCH))
        loss = features.float().pow(2).mean()
        backward(loss + center_loss(features) if number >= made_late + unused else loss, optimizers[0])
        for optimizer in optimizers:
            optimizer.step()
    return center_loss.centers.detach()


@pytest.mark.parametrize("unused", [0, 2], ids=["", "not used at first"])
@pytest.mark.parametrize("made_late", [0, 2], ids=["made before initialize", "made later"])
@every_level
def test_it_gets_true_gradients_from_its_first_step_on(setting, made_late, unused):
    with session_of(setting):
        begin = functools.partial(initialize, setting, loss_scale=1000.0)
        centers = trained_centers(made_late, unused, begin, loops.backward)
    expected = trained_centers(made_late, unused, lambda *args: None, lambda loss, optimizer: loss.backward())
    tolerance = 32 * torch.finfo(setting.low if setting.level != "O0" else setting.high).eps
    assert torch.allclose(centers, expected, rtol=tolerance, atol=tolerance)


@every_level
def test_its_gradients_of_several_passes_add_up(setting, session):
    model, center_loss = make()
    optimizer, other = sgd(model.parameters()), sgd(center_loss.parameters())
    initialize(setting, model, optimizer, loss_scale=1024.0)
    sums = []
    for _ in range(2):
        for _ in range(3):
            features = model(torch.tensor(BATCH))
            loops.backward(center_loss(features), optimizer)
            sums.append(center_loss.centers.grad.clone())
        center_loss(model(torch.tensor(BATCH))).backward()
        sums.append(center_loss.centers.grad.clone())
        other.zero_grad()
        optimizer.zero_grad()
    for number, each in enumerate(sums):
        assert torch.allclose(each, sums[0] * (number % 4 + 1), rtol=2.0**-6)
    plain = torch.autograd.grad(center_loss(model(torch.tensor(BATCH))), center_loss.centers)[0]
    assert torch.allclose(plain, sums[0], rtol=2.0**-6)


@every_level
def test_a_plain_training_beside_it_is_left_alone(setting, session):
    model, _ = make()
    beside = torch.nn.Linear(2, 2)
    optimizer, other = sgd(model.parameters()), sgd(beside.parameters())
    initialize(setting, model, optimizer, loss_scale=1000.0)
    for _ in range(2):
        beside(torch.tensor(BATCH)).float().sum().backward()
        before = beside.weight.grad, beside.weight.grad._version, beside.weight.grad.clone()
        loops.step(model(torch.tensor(BATCH)).float().sum(), optimizer)
        assert beside.weight.grad is before[0] and before[0]._version == before[1]
        assert torch.equal(beside.weight.grad, before[2])
    other.step()


@settings_at("O1", "O2")
def test_a_plain_training_in_another_thread_is_left_alone(setting, session):
    model, _ = make()
    beside = torch.nn.Parameter(torch.ones(3))
    optimizer, other = sgd(model.parameters()), sgd([beside])
    initialize(setting, model, optimizer, loss_scale=1000.0)
    with amp.scale_loss(model(torch.tensor(BATCH)).float().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
        thread = threading.Thread(target=lambda: (beside * 3.0).sum().backward())
        thread.start()
        thread.join()
    assert torch.equal(beside.grad, torch.full((3,), 3.0))
    other.step()


@every_level
def test_an_optimizer_around_which_another_was_made_before_initialize_is_not_unscaled_twice(setting):
    class Around(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner
            self.param_groups = inner.param_groups

        def step(self, closure=None):
            return self.inner.step(closure)

    weights = []
    for scale in (1.0, 1024.0):
        with session_of(setting):
            model, _ = make()
            optimizer = Around(sgd(model.parameters()))
            initialize(setting, model, optimizer, loss_scale=scale)
            for _ in range(3):
                optimizer.zero_grad()
                loops.step(model(torch.tensor(BATCH)).float().pow(2).mean(), optimizer)
            weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


@settings_at("O2", "O5")
def test_one_warning_names_the_line_where_it_steps_on_half_weights(setting, session):
    if not step_hooks.exist():
        pytest.skip("this torch has no hooks on all steps")
    model, center_loss = make()
    optimizer = sgd([model.weight])
    others = [sgd([model.bias]), sgd(center_loss.parameters())]
    initialize(setting, model, optimizer, loss_scale=8.0)
    with pytest.warns(UserWarning) as warned:
        for _ in range(2):
            loops.step(model(torch.tensor(BATCH)).float().sum(), optimizer)
            for other in others:
                other.step()
    assert len(warned) == 1
    assert "SGD.step()" in str(warned[0].message) and "test_other_optimizers.py" in str(warned[0].message)


@settings_at("O1", "O2")
def test_the_graph_of_a_loss_is_not_searched_for_one_without_gradients(setting, monkeypatch, session):
    gc.collect()  # optimizers of earlier tests
    searched = []
    monkeypatch.setattr(scale_loss, "leaves_of", lambda loss: searched.append(loss) or leaves_of(loss))
    model, center_loss = make()
    optimizer, other = sgd(model.parameters()), sgd(center_loss.parameters())
    initialize(setting, model, optimizer, loss_scale=8.0)
    for _ in range(2):
        loops.backward(model(torch.tensor(BATCH)).float().sum(), optimizer)
    assert not searched
    center_loss(torch.tensor(BATCH)).backward()
    loops.backward(model(torch.tensor(BATCH)).float().sum(), optimizer)
    assert len(searched) == 1
    other.step()


@every_level
def test_nested_blocks_of_two_calls_of_initialize_leave_it_the_sum(setting, session):
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    _, center_loss = make()
    optimizers, other = [sgd(model.parameters()) for model in models], sgd(center_loss.parameters())
    for model, optimizer, scale in zip(models, optimizers, (8.0, 16.0)):
        initialize(setting, model, optimizer, loss_scale=scale)
    features = torch.tensor(BATCH)
    for number in range(1, 4):
        losses = [center_loss(features) + model(features).float().sum() for model in models]
        with amp.scale_loss(losses[0], optimizers[0]) as outer:
            if number == 1:
                outer.backward()
            with amp.scale_loss(losses[1], optimizers[1]) as inner:
                inner.backward()
            if number > 1:
                outer.backward()
        plain = torch.autograd.grad(center_loss(features), center_loss.centers)[0]
        assert torch.allclose(center_loss.centers.grad, 2 * number * plain, rtol=2.0**-6)
    other.zero_grad()


@every_level
def test_one_without_params_in_its_groups_does_no_harm(setting, session):
    model, center_loss = make()
    optimizer, emptied, unmade = (
        sgd(model.parameters()),
        sgd(center_loss.parameters()),
        sgd(center_loss.parameters()),
    )
    initialize(setting, model, optimizer, loss_scale=8.0)
    del emptied.param_groups[0]["params"], unmade.param_groups
    before = model.weight.detach().clone()
    loops.step(center_loss(model(torch.tensor(BATCH))), optimizer)
    assert torch.isfinite(model.weight).all() and not torch.equal(model.weight, before)
