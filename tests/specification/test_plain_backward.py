"""Specification 7.19: ``loss.backward()`` without ``scale_loss`` leaves true gradients, and ``step()`` uses them."""

import pytest
import torch
from helpers import loops
from helpers.networks import (
    FACTOR,
    INPUT,
    Lab,
    Product,
    ProductReference,
    each_setting_and_stored,
    initialize,
    session_of,
    settings_at,
)

from ampcompat import amp
from ampcompat.support.torch_compat import features

with_masters = settings_at("O2", "O5", stored=True)
needs_lasting_gradients = pytest.mark.skipif(
    not features.keeps_gradient_objects(), reason="this torch makes a new object of a gradient at every read"
)


@with_masters
def test_it_is_said_once_and_only_then(setting, capsys, loud):
    lab = Lab(setting, 128.0)
    capsys.readouterr()
    lab.backward()
    lab.step()
    assert capsys.readouterr().out == ""
    lab.plain()
    lab.step()
    said = capsys.readouterr().out
    assert "outside of amp.scale_loss" in said and said.count("\n") == 1
    lab.plain()
    lab.step()
    assert capsys.readouterr().out == ""


@with_masters
@pytest.mark.parametrize("scale, verbosity, is_delayed", [(1.0, 1, False), (1.0, 1, True), (128.0, 0, False)])
def test_it_is_not_said_where_losses_are_not_scaled_nor_at_verbosity_0(setting, scale, verbosity, is_delayed, capsys):
    with session_of(setting, verbosity=verbosity):
        lab = Lab(setting, loss_scale=scale)
        capsys.readouterr()
        lab.backward(delay_unscale=True) if is_delayed else lab.plain()
        lab.step()
        assert capsys.readouterr().out == ""


@each_setting_and_stored
def test_a_plain_backward_in_a_closure_is_stepped_on(setting, session):
    lab = Lab(setting, 128.0)

    def closure():
        lab.optimizer.zero_grad()
        lab.reference.zero_grad()
        lab.plain()

    for _ in range(2):
        lab.optimizer.step(closure)
        lab.reference.step()
        lab.check()


@each_setting_and_stored
@pytest.mark.parametrize("clears", [False, True])
def test_a_plain_backward_reaches_every_optimizer_of_a_param(setting, clears, session):
    model = torch.nn.Linear(4, 1, bias=False).to(setting.high)
    before = model.weight.detach().clone()
    optimizers = [torch.optim.SGD(model.parameters(), lr=2.0**-3) for _ in range(2)]
    initialize(setting, model, optimizers, loss_scale=1.0)
    model(torch.ones(1, 4, dtype=setting.high)).sum().backward()
    optimizers[0].step()
    if clears:
        optimizers[0].zero_grad()
    optimizers[1].step()
    moved = before.double() - model.weight.detach().double()
    assert float((moved - (1 if clears else 2) * 2.0**-3).abs().max()) <= 2 * torch.finfo(setting.low).eps


@with_masters
def test_plain_gradients_beside_a_skipped_step_are_skipped_with_it(setting, session):
    lab = Lab(setting, loss_scale="dynamic")
    for overflows in (True, False):
        loss = lab.loss() * (float("inf") if overflows else 1.0)
        loops.backward(loss, lab.optimizer)
        lab.loss().backward()
        lab.optimizer.step()
        assert amp.step_was_skipped(lab.optimizer) == overflows
        if overflows:
            lab.check()
            lab.optimizer.zero_grad()
    lab.reference.backward(FACTOR)
    lab.reference.backward(FACTOR)
    lab.reference.step()
    lab.check()


@with_masters
def test_a_pass_with_delay_unscale_is_still_an_error_at_the_step(setting, session):
    lab = Lab(setting, 128.0)
    lab.backward(delay_unscale=True)
    lab.plain()
    with pytest.raises(RuntimeError, match="delay_unscale"):
        lab.optimizer.step()


@with_masters
def test_a_step_inside_of_the_block_is_an_error_that_changes_nothing(setting, session):
    lab = Lab(setting, 128.0)
    with amp.scale_loss(lab.loss(), lab.optimizer) as scaled_loss:
        scaled_loss.backward()
        list(amp.master_params(lab.optimizer))  # reading moves nothing that is scaled
        with pytest.raises(RuntimeError, match="after the block"):
            lab.optimizer.step()
    lab.reference.backward(FACTOR)
    lab.step()


# -- other optimizers' passes ------------------------------------------------------------------------------------------


class Pair:
    """Two models with an optimizer each; the first's loss may reach the second."""

    def __init__(self, setting):
        self.x = INPUT.to(setting.high)
        self.models = [Product(1.0).to(setting.high), Product(1.5).to(setting.high)]
        self.references = [ProductReference(setting, model) for model in self.models]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=2.0**-2, momentum=2.0**-1) for model in self.models]
        initialize(setting, self.models, self.optimizers, loss_scale=128.0)

    def loss(self, *indices):
        return sum(FACTOR * self.models[index](self.x).sum() for index in indices)

    def scaled(self, index, *reached):
        loops.backward(self.loss(index, *reached), self.optimizers[index])
        self.references[index].backward(FACTOR)

    def plain(self, index):
        self.loss(index).backward()
        self.references[index].backward(FACTOR)

    def step(self, index):
        reference = self.references[index]
        self.optimizers[index].step()
        reference.step()
        (group,) = self.optimizers[index].param_groups
        assert all(torch.equal(p.detach().double(), w) for p, w in zip(group["params"], (reference.a, reference.b)))

    def zero_grad(self, *indices):
        for index in indices or (0, 1):
            self.optimizers[index].zero_grad()
            self.references[index].zero_grad()


@with_masters
@pytest.mark.parametrize("before", [0, 15])
def test_one_model_trains_plainly_beside_one_that_does_not(setting, before, capsys, loud):
    pair = Pair(setting)
    for _ in range(before):  # a discriminator that warms up
        pair.zero_grad()
        pair.scaled(0)
        pair.step(0)
    capsys.readouterr()
    for _ in range(15):
        pair.zero_grad()
        pair.plain(1)
        pair.scaled(0)
        pair.step(0)
        pair.step(1)
    assert "scaled by" not in capsys.readouterr().out


@with_masters
def test_what_another_optimizers_scaled_pass_left_is_warned_about_and_not_stepped_on(setting, capsys, loud):
    pair = Pair(setting)
    capsys.readouterr()
    for _ in range(15):
        pair.zero_grad()
        pair.scaled(1)
        pair.scaled(0, 1)  # leaves scaled gradients in the second model
        pair.step(0)
        pair.step(1)
    assert "scaled by 128" in capsys.readouterr().out


@with_masters
@pytest.mark.parametrize("stops", ["before backward", "by an error"])
def test_a_pass_that_left_nothing_is_no_reason_to_doubt_plain_gradients(setting, stops, session):
    pair = Pair(setting)
    for _ in range(3):
        pair.zero_grad()
        try:
            with amp.scale_loss(pair.loss(0, 1), pair.optimizers[0]):
                if stops == "by an error":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        pair.plain(1)
        pair.step(1)


@with_masters
@needs_lasting_gradients
def test_plain_gradients_count_after_the_model_has_dropped_scaled_ones(setting, session):
    pair = Pair(setting)
    for _ in range(3):  # a generator's pass leaves gradients in the discriminator, whose optimizer clears none
        pair.scaled(0, 1)
        pair.step(0)
        pair.zero_grad(0)
        for param in pair.models[1].parameters():
            param.grad = None
        pair.plain(1)
        pair.step(1)
        pair.references[1].zero_grad()


@settings_at("O0", "O1", "O4")
@pytest.mark.parametrize("scale", [128.0, "dynamic", 1.0])
def test_a_step_within_a_block_says_that_gradients_are_scaled_and_is_right_where_the_scale_is_one(
    setting, scale, capsys, loud
):
    lab = Lab(setting, scale)
    capsys.readouterr()
    for _ in range(2):
        with lab.block() as scaled_loss:
            scaled_loss.backward()
            lab.reference.backward(FACTOR)
            lab.step() if scale == 1.0 else lab.optimizer.step()
    said = capsys.readouterr().out
    assert said == "" if scale == 1.0 else said.count("within its amp.scale_loss block") == 1
