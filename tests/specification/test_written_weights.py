"""Specification 7.18: weights written after ``initialize`` take effect, at levels with masters as at all others."""

import contextlib
import copy
import inspect

import pytest
import torch
from helpers import loops
from helpers.networks import (
    begin,
    differing,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
    weights_of,
)

import ampcompat
from ampcompat import amp

#: Old torch's ``state_dict`` hands out ``param.data``, which may be written to, so weights are compared once after it.
STATE_DICT_READS_DATA = "param.data" in inspect.getsource(torch.nn.Module._save_to_state_dict)
with_masters = settings_at("O2", "O5", stored=True)
cast_weights = settings_at("O2", "O3", "O5", stored=True)
A_QUARTER = 0.25  # which every dtype holds exactly


def masters_of(optimizer):
    """Return the params in ``param_groups``, unasked: ``amp.master_params`` would refresh them."""
    return [param for group in optimizer.param_groups for param in group["params"]]


# -- ways to write -----------------------------------------------------------------------------------------------------


def by_data(param):
    param.data.fill_(A_QUARTER)


def in_place(param):
    with torch.no_grad():
        param.fill_(A_QUARTER)


def by_detached(param):
    param.detach().fill_(A_QUARTER)


def by_replacing_with_a_slice(param):
    flat = torch.zeros(3 * param.numel(), dtype=param.dtype)
    param.data = flat[param.numel() : 2 * param.numel()].view(param.shape)
    flat.fill_(A_QUARTER)


def by_numpy(param):
    (param.detach() if param.dtype is not torch.bfloat16 else param.detach().view(torch.int16)).numpy()[...] = (
        A_QUARTER if param.dtype is not torch.bfloat16 else 0x3E80
    )


SEEN = [by_data, in_place, by_detached, by_replacing_with_a_slice]


def write_some(model, write):
    """Write the weight of the last layer; return it."""
    write(model[3].weight)
    return model[3].weight


@cast_weights
@pytest.mark.parametrize("write", SEEN + [by_numpy])
def test_weights_written_before_the_first_step_are_stepped_on(setting, write, session):
    model, optimizer = begin(setting, rate=2.0**-4, momentum=0.9)
    if write is by_numpy and setting.low is torch.bfloat16 and not hasattr(torch, "uint16"):
        pytest.skip("this torch cannot view bfloat16 as integers")
    others = {name: value for name, value in model.state_dict().items() if name != "3.weight"}
    weight = write_some(model, write)
    assert differing(others, {name: model.state_dict()[name] for name in others}) == []
    train_step(model, optimizer, make_batch(setting))
    (master,) = [each for each in masters_of(optimizer) if each.shape == weight.shape]
    momentum = optimizer.state[master]["momentum_buffer"].to(setting.high)
    expected = torch.full_like(momentum, A_QUARTER) - 2.0**-4 * momentum
    assert torch.equal(master.detach(), expected.to(master.dtype))
    assert torch.equal(weight.detach(), master.detach().to(weight.dtype))


@with_masters
@pytest.mark.parametrize("write", SEEN)
def test_weights_written_later_on_are_stepped_on(setting, write, session):
    model, optimizer = begin(setting, rate=0.0)
    batch = make_batch(setting)
    for _ in range(2):
        train_step(model, optimizer, batch)
        masters = masters_of(optimizer)
        before = [master.detach().clone() for master in masters]
        weight = write_some(model, write)
        train_step(model, optimizer, batch)
        for master, old in zip(masters, before):
            if master.shape == weight.shape:
                assert bool((master == A_QUARTER).all()) and bool((weight == A_QUARTER).all())
                master.data.copy_(old)  # and what is written to masters counts as it always has
                train_step(model, optimizer, batch)
                assert torch.equal(master.detach(), old)
                assert torch.equal(weight.detach(), old.to(weight.dtype))
            else:
                assert torch.equal(master.detach(), old), "unwritten masters keep their bits"


@cast_weights
@pytest.mark.parametrize("before", ["forward", "step"])
@pytest.mark.parametrize("alias", ["detach", "data", "kept"])
def test_weights_written_through_numpy_later_on_are_stepped_on(setting, alias, before, session):
    if setting.low is torch.bfloat16:
        pytest.skip("numpy has no bfloat16")
    model, optimizer = begin(setting, rate=0.0)
    weight, batch = model[3].weight, make_batch(setting)
    kept = weight.detach().numpy() if alias == "kept" else None
    for value in (0.25, 0.5):
        for _ in range(2):
            train_step(model, optimizer, batch)
        if before == "step":
            loops.backward(model(batch[0]).sum(), optimizer)
        array_of = {"detach": lambda: weight.detach().numpy(), "data": lambda: weight.data.numpy()}
        array_of.get(alias, lambda: kept)()[...] = value
        if before == "forward":
            train_step(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
        masters = [each for each in masters_of(optimizer) if each.shape == weight.shape]
        assert bool((weight == value).all()) and [bool((each == value).all()) for each in masters] == [True]
        assert bool((model.state_dict()["3.weight"] == value).all())


def by_data_exchanged(first, second):
    first.data, second.data = second.data, first.data


def by_swapped_tensors(first, second):
    if not hasattr(torch.utils, "swap_tensors"):
        pytest.skip("this torch does not swap tensors")
    with contextlib.suppress(RuntimeError):  # torch refuses tensors with weak references, which all watched params have
        torch.utils.swap_tensors(first, second)


@with_masters
@pytest.mark.parametrize("exchange", [by_data_exchanged, by_swapped_tensors])
def test_weights_that_are_exchanged_keep_the_sum_of_their_versions_and_are_stepped_on(setting, exchange, session):
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3, bias=False), torch.nn.Linear(3, 6))
    model.to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    initialize(setting, model, optimizer, loss_scale=8.0)
    for _ in range(2):
        train_step(model, optimizer, make_batch(setting))
        exchange(model[0].bias, model[2].bias)
        expected = weights_of(model)
        train_step(model, optimizer, make_batch(setting))
        assert differing(weights_of(model), expected) == []


@with_masters
def test_only_the_elements_that_were_written_lose_their_low_bits(setting, session):
    model, optimizer = begin(setting, rate=0.0)
    for _ in range(2):
        master = masters_of(optimizer)[4]
        before = master.detach().clone()
        model[3].weight.data[0].clamp_(0.5, 0.5)
        train_step(model, optimizer, make_batch(setting))
        assert bool((master[0] == 0.5).all()) and torch.equal(master[1:].detach(), before[1:])


@with_masters
def test_an_alias_that_is_kept_is_written_at_any_time(setting, session):
    model, optimizer = begin(setting, rate=0.0)
    alias = model[3].weight.data
    for value in (0.25, 0.5):
        for _ in range(2):
            train_step(model, optimizer, make_batch(setting))
        alias.view(-1)[0] = value
        train_step(model, optimizer, make_batch(setting))
        assert masters_of(optimizer)[4].view(-1)[0] == value


@with_masters
def test_weights_swapped_in_for_a_while_cost_the_masters_no_bits(setting, session):
    def trained(swaps):
        model, optimizer = begin(setting)
        for _ in range(4):
            train_step(model, optimizer, make_batch(setting))
            if swaps:
                kept = [param.data.clone() for param in model.parameters()]
                for param in model.parameters():
                    param.data.mul_(0.5)
                model(make_batch(setting)[0])
                model.state_dict()
                for param, old in zip(model.parameters(), kept):
                    param.data = old
        return {str(index): master.detach().clone() for index, master in enumerate(masters_of(optimizer))}

    assert differing(trained(False), trained(True)) == []


@with_masters
def test_weights_disturbed_around_one_pass_cost_the_masters_no_bits(setting, session):
    """Adversarial training: a second pass through disturbed weights, which are put back before the step."""
    model, optimizer = begin(setting, rate=0.0)
    x, target = make_batch(setting)
    for _ in range(3):
        before = [master.detach().clone() for master in masters_of(optimizer)]
        for disturbance in (0.0, 0.125):
            kept = {name: param.data.clone() for name, param in model.named_parameters()}
            for param in model.parameters():
                param.data.add_(disturbance)
            loops.backward(torch.nn.functional.cross_entropy(model(x), target), optimizer)
            for name, param in model.named_parameters():
                param.data = kept[name]
        optimizer.step()
        optimizer.zero_grad()
        assert all(torch.equal(a, b.detach()) for a, b in zip(before, masters_of(optimizer)))


def by_hand(master):
    with torch.no_grad():
        master.mul_(0.5)


@with_masters
@pytest.mark.parametrize("write", [by_hand, lambda master: master.data.mul_(0.5)], ids=["in place", "data"])
@pytest.mark.parametrize("steps", [0, 2])
def test_what_a_script_writes_to_masters_is_in_the_next_forward_pass_and_in_the_state_dict(
    setting, write, steps, session
):
    model, optimizer = begin(setting, rate=0.0)
    batch = make_batch(setting)
    for _ in range(steps):
        train_step(model, optimizer, batch)
    model.eval()
    (master,) = [each for each in masters_of(optimizer) if each.shape == model[3].weight.shape]
    expected = master.detach().clone() * 0.5
    write(master)
    model(batch[0])
    assert torch.equal(model[3].weight.detach(), expected.to(setting.low))
    assert torch.equal(model.state_dict()["3.weight"], expected)
    train_step(model, optimizer, batch)
    assert torch.equal(master.detach(), expected)


def mask_of(param):
    return (torch.arange(param.numel()) % 3 > 0).view(param.shape).to(param.dtype)


def mask_data(model):
    for param in model.parameters():
        param.data.mul_(mask_of(param))


def mask_in_place(model):
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(mask_of(param))


def mask_new_data(model):
    for param in model.parameters():
        param.data = param.data * mask_of(param)


def mask_by_loading(model):
    state = model.state_dict()
    masked = {name: state[name] * mask_of(state[name]) for name, _ in model.named_parameters()}
    model.load_state_dict(masked, strict=False)


@with_masters
@pytest.mark.parametrize(
    "mask, place",
    [
        (mask, place)
        for mask in (mask_data, mask_in_place, mask_new_data, mask_by_loading)
        for place in ("before the step", "before the pruning", "after the pruning")
        if (mask, place) != (mask_in_place, "before the pruning")
    ],
)
def test_decay_by_hand_through_param_groups_and_pruning_through_the_model_both_count(setting, mask, place, session):
    model, optimizer = begin(setting, rate=0.0)
    x, target = make_batch(setting)
    masters = masters_of(optimizer)
    expected = [master.detach() * mask_of(master) / 8 for master in masters]

    def decay(now):
        for master in masters if place == now else ():
            master.data.mul_(0.5)

    for _ in range(3):
        loops.backward(torch.nn.functional.cross_entropy(model(x), target), optimizer)
        decay("before the step")
        optimizer.step()
        optimizer.zero_grad()
        decay("before the pruning")
        mask(model)
        decay("after the pruning")
    train_step(model, optimizer, (x, target))
    assert all(torch.equal(a, b.detach()) for a, b in zip(expected, masters))


@settings_at("O2", "O5")
def test_masters_are_read_through_data_with_what_was_written_to_their_half_params(setting, session):
    model, optimizer = begin(setting, rate=0.0)
    for write in SEEN:
        train_step(model, optimizer, make_batch(setting))
        for param, master in zip(model.parameters(), masters_of(optimizer)):
            write(param)
            assert master.data.to(param.dtype).eq(A_QUARTER).all()  # one that was near it keeps its low bits
            master.data.fill_(1.0)


@with_masters
def test_a_write_after_loaded_weights_and_a_skipped_step_counts(setting, session):
    (model, optimizer), batch = begin(setting, rate=0.0, loss_scale="dynamic", init_scale=8.0), make_batch(setting)
    train_step(model, optimizer, batch)
    model.load_state_dict(model.state_dict())
    loops.step(model(batch[0]).sum() * float("inf"), optimizer)
    assert amp.step_was_skipped(optimizer)
    by_data(model[3].weight)
    train_step(model, optimizer, batch)
    (master,) = [each for each in masters_of(optimizer) if each.shape == model[3].weight.shape]
    assert bool((master == A_QUARTER).all()) and bool((model[3].weight == A_QUARTER).all())


@with_masters
def test_a_new_optimizer_starts_from_what_was_written(setting, session):
    model, optimizer = begin(setting)
    train_step(model, optimizer, make_batch(setting))
    write_some(model, by_data)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    before = masters_of(optimizer)[0].detach().clone()
    initialize(setting, model, other, loss_scale=8.0)
    assert bool((masters_of(other)[4] == A_QUARTER).all())
    assert torch.equal(masters_of(other)[0].detach(), before)


@with_masters
@pytest.mark.parametrize("steps", [0, 1])
def test_what_was_written_last_is_there_after_the_session(setting, steps):
    with session_of(setting):
        model, optimizer = begin(setting)
        for _ in range(steps):
            train_step(model, optimizer, make_batch(setting))
        before = model.state_dict()["0.weight"]
        write_some(model, by_data)
        ampcompat.reset()
    assert bool((model[3].weight == A_QUARTER).all()) and torch.equal(model[0].weight.detach(), before)


@with_masters
def test_a_copy_of_model_and_optimizer_has_what_was_written(setting, session):
    model, optimizer = begin(setting, rate=0.0)
    train_step(model, optimizer, make_batch(setting))
    write_some(model, by_data)
    model, optimizer = copy.deepcopy((model, optimizer))
    train_step(model, optimizer, make_batch(setting))
    assert bool((masters_of(optimizer)[4] == A_QUARTER).all())
    write_some(model, lambda param: param.data.fill_(0.5))
    train_step(model, optimizer, make_batch(setting))
    assert bool((masters_of(optimizer)[4] == 0.5).all())


@with_masters
def test_a_closure_may_write_weights_too(setting, session):
    model, optimizer = begin(setting, rate=0.0)

    def closure():
        write_some(model, by_data)
        loops.backward(model(make_batch(setting)[0]).sum(), optimizer)

    for _ in range(2):
        optimizer.step(closure)
        assert bool((masters_of(optimizer)[4] == A_QUARTER).all())
        assert bool((model[3].weight == A_QUARTER).all())


@with_masters
def test_groups_added_later_are_compared_before_their_first_step(setting, session):
    model = make_network(setting)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.0)
    initialize(setting, model, optimizer, loss_scale=8.0)
    train_step(model, optimizer, make_batch(setting))
    model[0].weight.data.fill_(0.5)
    optimizer.add_param_group({"params": model[3].parameters()})
    by_numpy(model[3].bias) if setting.low is not torch.bfloat16 else by_data(model[3].bias)
    train_step(model, optimizer, make_batch(setting))
    masters = masters_of(optimizer)
    assert bool((masters[0] == 0.5).all()) and bool((masters[3] == A_QUARTER).all())


@with_masters
def test_nothing_is_compared_when_nothing_was_written(setting, monkeypatch, session):
    from ampcompat.engine.masters import master_sync

    compared = []
    monkeypatch.setattr(master_sync, "take_values", lambda *lists: compared.append(lists))
    model, optimizer = begin(setting)
    for _ in range(3):
        train_step(model, optimizer, make_batch(setting))
        if not compared:
            pytest.fail("before the first step every value is compared")
        first = compared[:]
        for _ in range(2):
            train_step(model, optimizer, make_batch(setting))
            weights_of(model), list(amp.master_params(optimizer))
            if not STATE_DICT_READS_DATA:
                model.state_dict()
        assert compared == first


@with_masters
def test_large_weights_are_compared_in_parts(setting, monkeypatch, session):
    from ampcompat.support import tensor_lists

    monkeypatch.setattr(tensor_lists, "CHUNK", 20)
    model, optimizer = begin(setting, rate=0.0)
    masters = masters_of(optimizer)
    before = [master.detach().clone() for master in masters]
    with torch.no_grad():
        model[0].weight[5].fill_(A_QUARTER)
        model[3].weight[:, 1].fill_(A_QUARTER)
    train_step(model, optimizer, make_batch(setting))
    before[0][5] = before[4][:, 1] = A_QUARTER
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, masters))
