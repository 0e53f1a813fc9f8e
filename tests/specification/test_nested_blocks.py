"""``scale_loss`` within ``scale_loss`` on one optimizer: the plain sum of the gradients, or an error beforehand."""

import gc
import weakref

import pytest
import torch
from helpers import loops
from helpers.networks import (
    INPUT,
    SETTINGS,
    Lab,
    Product,
    ProductReference,
    each_setting,
    initialize,
    settings_at,
)
from helpers.pairing import paired

from ampcompat import amp

FIRST, SECOND = 2.0**-4, 2.0**-5
#: Which scaled losses go backward where: within the inner block, within the outer one behind it.
ORDERS = [("ab", ""), ("ba", ""), ("b", "a"), ("a", "b"), ("", "ab"), ("", "ba")]


@paired("setting, order, before", SETTINGS, ORDERS, [False, True])
def test_nested_blocks_give_the_sum(setting, order, before, session):
    inside, behind = order
    lab = Lab(setting)
    # Half gradients of two losses add up in half within a block, as they do in .grad anywhere.
    rounding = torch.finfo(setting.low).eps * 2.0**-4 if setting.casts_weights else 0.0
    for _ in range(2):
        if before:  # gradients are there already
            with lab.block(FIRST) as scaled_loss:
                scaled_loss.backward()
            lab.reference.backward(FIRST)
        with lab.block(FIRST) as a:
            with lab.block(SECOND) as b:
                losses = {"a": a, "b": b}
                for name in inside:
                    losses[name].backward(retain_graph=True)
            for name in behind:
                losses[name].backward(retain_graph=True)
        lab.reference.backward(FIRST)
        lab.reference.backward(SECOND)
        lab.step(rounding)


@each_setting
def test_blocks_may_end_in_any_order_and_the_last_one_unscales(setting, session):
    lab = Lab(setting)
    first, second = lab.block(FIRST), lab.block(SECOND)
    a, b = first.__enter__(), second.__enter__()
    a.backward()
    first.__exit__(None, None, None)
    b.backward()
    second.__exit__(None, None, None)
    lab.reference.backward(FIRST)
    lab.reference.backward(SECOND)
    lab.step()


@each_setting
@pytest.mark.parametrize("delayed", ["inner", "outer"])
def test_delay_unscale_in_one_of_them(setting, delayed, session):
    lab = Lab(setting)
    with lab.block(FIRST, delay_unscale=delayed == "outer") as a:
        with lab.block(SECOND, delay_unscale=delayed == "inner") as b:
            a.backward()
        b.backward()
    if delayed == "outer":
        with pytest.raises(RuntimeError, match="delay_unscale"):
            lab.optimizer.step()
        with lab.block(SECOND):
            pass
    lab.reference.backward(FIRST)
    lab.reference.backward(SECOND)
    lab.step()


@each_setting
@pytest.mark.parametrize("lists", [False, True])
def test_blocks_of_two_scales_are_an_error_before_anything_is_done(setting, lists, session):
    lab = Lab(setting, num_losses=2)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=setting.high))], lr=0.1)
    optimizers = [other, lab.optimizer] if lists else lab.optimizer
    loss = FIRST * lab.model(lab.x).sum()
    with amp.scale_loss(loss, optimizers) as a:
        a.backward()
        with pytest.raises(RuntimeError, match="one block for the sum"):
            with lab.block(SECOND, loss_id=1):
                pytest.fail("the block was entered")
    lab.reference.backward(FIRST)
    lab.step()
    assert [each["unskipped"] for each in amp.state_dict().values()] == [1, 0]
    with lab.block(SECOND, loss_id=1) as b:  # one after the other is no trouble
        b.backward()
    lab.reference.backward(SECOND)
    lab.step()


@settings_at("O4", "O5")
def test_two_losses_without_a_scale_may_be_nested(setting, session):
    lab = Lab(setting, num_losses=2, loss_scale=1.0)
    with lab.block(FIRST) as a, lab.block(SECOND, loss_id=1) as b:
        b.backward()
        a.backward()
    lab.reference.backward(FIRST)
    lab.reference.backward(SECOND)
    lab.step()


@each_setting
@pytest.mark.parametrize("inner_has", ["fewer", "more"])
def test_blocks_that_share_some_optimizers(setting, inner_has, session):
    models = [Product(1.0).to(setting.high), Product(1.5).to(setting.high)]
    references = [ProductReference(setting, model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=2.0**-2, momentum=2.0**-1) for model in models]
    initialize(setting, models, optimizers, loss_scale="dynamic")
    x = INPUT.to(setting.high)
    few, many = optimizers[1], optimizers
    outer, inner = (many, few) if inner_has == "fewer" else (few, many)
    of_many = FIRST * (models[0](x) + models[1](x)).sum()
    of_few = SECOND * models[1](x).sum()
    losses = (of_many, of_few) if inner_has == "fewer" else (of_few, of_many)
    with amp.scale_loss(losses[0], outer) as a:
        loops.backward(losses[1], inner)
        a.backward()
    references[0].backward(FIRST)
    references[1].backward(FIRST)
    references[1].backward(SECOND)
    for optimizer, reference in zip(optimizers, references):
        optimizer.step()
        reference.step()
        for master, weight in zip(amp.master_params(optimizer), (reference.a, reference.b)):
            assert torch.equal(master.detach().double(), weight)


@each_setting
def test_blocks_of_one_optimizer_leave_the_gradients_of_another_that_shares_a_param(setting, session):
    model = Product(1.0).to(setting.high)
    one, both = torch.optim.SGD([model.a], lr=1.0), torch.optim.SGD([model.a, model.b], lr=1.0)
    initialize(setting, model, [one, both], loss_scale=8.0)

    def loss_of(param):
        ones = torch.ones_like(param, dtype=setting.high)  # torch_xla adds wrongly to the gradient of a sum alone
        return 2.0**-4 * (param.to(setting.high) * ones).sum()

    loops.backward(loss_of(model.b), [one, both])
    loss_of(model.b).backward()  # not in a block: .grad is the sum of both
    with amp.scale_loss(loss_of(model.a), one) as outer:
        with amp.scale_loss(loss_of(model.a), one) as inner:
            inner.backward()
        outer.backward()
    for param in (model.a, model.b):
        assert torch.equal(param.grad.double(), torch.full_like(param, 2.0**-3).double())
    model.b.grad.mul_(0.5)
    before = model.state_dict()["b"].clone()
    both.step()
    assert torch.equal(before - model.state_dict()["b"], torch.full_like(before, 2.0**-4))


@each_setting
def test_an_error_in_the_inner_block_leaves_the_outer_one_right(setting, session):
    lab = Lab(setting)
    with lab.block(FIRST) as a:
        with pytest.raises(ValueError), lab.block(SECOND) as b:
            b.backward()
            raise ValueError
        a.backward()
    lab.reference.backward(FIRST)
    lab.reference.backward(SECOND)
    lab.step()


@each_setting
def test_a_block_that_was_entered_and_forgotten_stands_in_nobodys_way(setting, session):
    lab = Lab(setting)
    lab.block(FIRST).__enter__()
    with lab.block(FIRST) as a:
        a.backward()
    lab.reference.backward(FIRST)
    lab.step()


@settings_at("O0", "O1", "O2", "O3", "O5")
def test_a_forgotten_block_that_has_set_gradients_aside_keeps_nothing_alive(setting, session):
    lab = Lab(setting)
    for factor in (FIRST, float("inf")):  # half gradients are set aside, and those of an overflow
        with lab.block(factor) as a:
            a.backward()
    lab.block(FIRST).__enter__()
    optimizer = weakref.ref(lab.optimizer)
    del lab, a
    gc.collect()
    assert optimizer() is None
