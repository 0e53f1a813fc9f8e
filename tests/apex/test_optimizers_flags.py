"""Optimizers with ``found_inf`` and ``grad_scale``: steps that are skipped on the device."""

import copy

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from helpers import automata
from helpers.dispatched import Watch
from optimizer_cases import CASES, IDS, PLAIN, Reference, fresh_params, made, params_of, set_gradients

import ampcompat
from ampcompat import amp
from ampcompat.apex import optimizers
from ampcompat.apex.multi_tensor import foreach_ops
from ampcompat.support.torch_compat import features

needs_flags = pytest.mark.skipif(
    not features.has_flagged_sgd("cpu"), reason="this torch has no update that a flag forbids, on the CPU"
)
needs_foreach = pytest.mark.skipif(
    not features.has_foreach_copy() or not hasattr(torch, "_foreach_max"),
    reason="this torch has no foreach for all of it",
)
each_case = pytest.mark.parametrize("make, formula, options", CASES, ids=IDS)
each_class = pytest.mark.parametrize("make, formula, options", PLAIN, ids=[case[0].__name__ for case in PLAIN])


def step(optimizer, index, overflowed=False, scale=None, flagged=True):
    """Step as a caller that passes the flag if ``flagged``; the gradients of a skipped step may hold anything."""
    set_gradients(params_of(optimizer), index)
    for param in params_of(optimizer):
        if scale is not None:
            param.grad.mul_(scale)
        if overflowed:
            param.grad.fill_(float("nan"))
    if not flagged:
        return optimizer.step()
    optimizer.found_inf = torch.full((), float(overflowed))
    optimizer.grad_scale = None if scale is None else torch.full((), scale)
    try:
        return optimizer.step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale


def dampens(options):
    return bool(options.get("dampening"))


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=needs_flags)], ids=str)
@pytest.mark.parametrize("is_read", [pytest.param(False, marks=needs_flags), True], ids=["on the device", "read"])
def test_flagged_steps_change_nothing_and_the_others_follow_the_formula(
    make, formula, options, dtype, is_read, monkeypatch
):
    if is_read:
        monkeypatch.setattr(features, "has_flagged_sgd", lambda device_type: False)
    optimizer = made(make, options, fresh_params(dtype))
    assert optimizer._step_supports_amp_scaling != (is_read or dampens(options))
    reference = Reference(formula, optimizer, options)
    half = dtype is torch.float16
    for index, overflowed in enumerate([True, False, True, True, False, False]):
        before = copy.deepcopy([param.detach() for param in params_of(optimizer)])
        step(optimizer, index, overflowed, scale=8.0)
        if overflowed:
            assert all(torch.equal(param.detach(), old) for param, old in zip(params_of(optimizer), before))
            continue
        reference.step(optimizer, dtype if half else None)
        for param, right in zip(params_of(optimizer), reference.weights):
            tolerance = 2.0**-10 if half else 2.0**-16
            assert (param.detach().double() - right).abs().max() <= tolerance * max(1.0, float(right.abs().max()))
            if half:
                right.copy_(param.detach().double())


@needs_flags
@each_class
def test_state_dicts_count_the_steps_that_were_made_in_plain_numbers(make, formula, options):
    optimizer, plain = (made(make, options, fresh_params(torch.float32)) for _ in range(2))
    for index, overflowed in enumerate([False, True, False]):
        step(optimizer, index, overflowed)
        if not overflowed:
            set_gradients(params_of(plain), index)
            plain.step()
    counts = [[group.get("step") for group in each.state_dict()["param_groups"]] for each in (optimizer, plain)]
    assert counts[0] == counts[1] and all(type(one) is type(other) for one, other in zip(*counts))
    clone = made(make, options, [torch.nn.Parameter(param.detach().clone()) for param in params_of(optimizer)])
    clone.load_state_dict(optimizer.state_dict())
    for each in (optimizer, clone):  # one goes on counting on the device, the other on the host
        set_gradients(params_of(each), 3)
        each.step()
    assert all(torch.allclose(one, other, rtol=1e-5) for one, other in zip(params_of(optimizer), params_of(clone)))


@each_class
@pytest.mark.parametrize("flagged", [pytest.param(True, marks=needs_flags), False], ids=["flagged", "plain"])
def test_strides_do_not_matter(make, formula, options, flagged):
    runs = []
    for turned in (False, True):
        (param,) = fresh_params(torch.float32, [(4, 3)])
        optimizer = made(make, options, [torch.nn.Parameter(param.detach().t().contiguous().t()) if turned else param])
        for index, overflowed in enumerate([True, False, True, False]):
            step(optimizer, index, overflowed and flagged, flagged=flagged)
        runs.append(params_of(optimizer)[0].detach())
    assert torch.allclose(*runs, rtol=1e-5)


@hypothesis.given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.125, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.001, 0.5, 1.0]),
    st.booleans(),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_an_average_is_updated_or_unchanged_by_the_flag(values, weight, grad_weight, is_skipped):
    old = torch.tensor(values)
    values = torch.full_like(old, float("nan")) if is_skipped else old.flip(0) * 0.5 + 1.0
    (average,) = averages = [old.clone()]
    foreach_ops.update_average_(averages, weight, [values], grad_weight, torch.full((), float(is_skipped)))
    right = old.double() if is_skipped else weight * old.double() + grad_weight * values.double()
    tolerance = 0.0 if is_skipped else 4 * torch.finfo(torch.float32).eps * 8
    assert float((average.double() - right).abs().max()) <= tolerance


@each_case
@pytest.mark.parametrize(
    "flagged, most",
    [pytest.param(True, 120, marks=needs_flags), pytest.param(False, 80, marks=needs_foreach)],
    ids=["flagged", "plain"],
)
def test_a_step_takes_as_many_operations_for_any_number_of_params_and_a_flagged_one_reads_nothing(
    make, formula, options, flagged, most
):
    if flagged and dampens(options):
        pytest.skip("with dampening the host decides")
    calls = []
    for count in (4, 40):
        optimizer = made(make, options, fresh_params(torch.float32, [(3,)] * count))
        for index in (0, 1):
            step(optimizer, index, flagged=flagged)
        set_gradients(params_of(optimizer), 2)
        if flagged:
            optimizer.found_inf, optimizer.grad_scale = torch.zeros(()), torch.ones(())
        with Watch() as watch:
            optimizer.step()
        assert watch.reads == 0 or not flagged
        calls.append(len(watch.calls))
    assert calls[0] == calls[1] < most


@needs_flags
@pytest.mark.parametrize("level", ["O1", "O2"])
@each_class
def test_under_amp_no_step_reads_anything_and_overflows_are_skipped(make, formula, options, level):
    torch.manual_seed(0)
    model, optimizer = automata.initialized(lambda params: make(params, lr=0.01), opt_level=level)
    for overflowed in (False, True):
        automata.step(model, optimizer, overflowed)
    kept = [[param.detach().clone() for param in amp.master_params(optimizer)]]
    with Watch() as watch:
        for overflowed in (True, False):
            automata.step(model, optimizer, overflowed)
            kept.append([param.detach().clone() for param in amp.master_params(optimizer)])
    assert watch.reads == 0
    same = [all(map(torch.equal, old, new)) for old, new in zip(kept, kept[1:])]
    assert same == [True, False]
    assert not amp.step_was_skipped(optimizer)
    assert ampcompat.current().scalers[0].state_dict() == {"loss_scale": 2.0**14, "unskipped": 1}


def test_a_wrong_keyword_of_a_step_is_an_error():
    for make in (optimizers.FusedAdam, optimizers.FusedMixedPrecisionLamb):
        with pytest.raises(TypeError, match="grad_scalar"):
            make(fresh_params(torch.float32)).step(grad_scalar=None)
