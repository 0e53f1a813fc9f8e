"""The optimizers of apex.optimizers against the published formulas in float64; state dicts, copies and pickles."""

import copy

import pytest
import torch
from helpers.copies import pickled, saved_and_loaded
from optimizer_cases import CASES, IDS, PLAIN, STEPS, Reference, fresh_params, made, params_of, same, set_gradients

from ampcompat.apex import optimizers

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def train(optimizer, steps, first=0):
    for step in range(first, first + steps):
        set_gradients(params_of(optimizer), step)
        optimizer.step()


def same_weights(one, other):
    return all(same(left, right) for left, right in zip(params_of(one), params_of(other)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make, formula, options", CASES, ids=IDS)
def test_weights_are_those_of_the_published_formula(make, formula, options, dtype):
    optimizer = made(make, options, fresh_params(dtype))
    reference = Reference(formula, optimizer, options)
    half = EPS[dtype] > 1e-4
    for step in range(STEPS):
        set_gradients(params_of(optimizer), step)
        before = [param.grad.clone() for param in params_of(optimizer)]
        optimizer.step()
        reference.step(optimizer, dtype if half else None)
        assert all(same(param.grad, grad) for param, grad in zip(params_of(optimizer), before))
        for param, right in zip(params_of(optimizer), reference.weights):
            # Half weights may differ by one unit where float64 and float32 round differently.
            tolerance = EPS[dtype] if half else 64 * EPS[dtype]
            if options.get("capturable"):
                tolerance = max(tolerance, 64 * EPS[torch.float32])  # its learning rate is a float32 tensor
            assert (param.detach().double() - right).abs().max() <= tolerance * max(1.0, float(right.abs().max()))
            if half:
                right.copy_(param.detach().double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make, formula, options", CASES, ids=IDS)
def test_a_run_resumed_from_a_state_dict_equals_one_that_went_on(make, formula, options, dtype):
    optimizer = made(make, options, fresh_params(dtype))
    train(optimizer, 2)
    saved = saved_and_loaded(optimizer.state_dict())
    clones = [torch.nn.Parameter(param.detach().clone()) for param in params_of(optimizer)]
    resumed = made(make, options, clones)
    resumed.load_state_dict(saved)
    train(optimizer, 2, first=2)
    train(resumed, 2, first=2)
    assert same_weights(optimizer, resumed)
    for one, other in zip(optimizer.state.values(), resumed.state.values()):
        assert all(same(value, other[name]) for name, value in one.items())


@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")  # torch 1.5
@pytest.mark.parametrize("make, formula, options", CASES, ids=IDS)
def test_copies_and_pickles_go_on_with_the_same_options(make, formula, options):
    optimizer = made(make, options, fresh_params(torch.float32))
    train(optimizer, 2)
    clones = [copy.deepcopy(optimizer), pickled(optimizer)]
    train(optimizer, 2, first=2)
    for clone in clones:
        train(clone, 2, first=2)
        assert same_weights(optimizer, clone)
        clone.zero_grad()


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=[case[0].__name__ for case in PLAIN])
def test_params_that_get_gradients_later_join_in(make, formula, options):
    optimizer = made(make, options, fresh_params(torch.float32))
    set_gradients(params_of(optimizer), 0)
    first = params_of(optimizer)[0]
    first.grad, before = None, first.detach().clone()
    optimizer.step()
    assert same(first, before)
    train(optimizer, 1, first=1)
    assert not same(first, before)


@pytest.mark.parametrize("make, formula, options", PLAIN, ids=[case[0].__name__ for case in PLAIN])
def test_mixed_dtypes_and_empty_params_share_a_group(make, formula, options):
    shapes = [(3, 2), (4,), (0,), (2,)]
    dtypes = [torch.float32, torch.float16, torch.float32, torch.float64]
    params = [param for shape, dtype in zip(shapes, dtypes) for param in fresh_params(dtype, [shape])]
    optimizer = made(make, options, params)
    before = [param.detach().clone() for param in params]
    train(optimizer, 2)
    changed = [not same(old, new) for old, new in zip(before, params)]
    assert changed == [True, True, False, True]


@pytest.mark.parametrize(
    "make", [optimizers.FusedAdam, optimizers.FusedLAMB, optimizers.FusedNovoGrad, optimizers.FusedMixedPrecisionLamb]
)
def test_amsgrad_is_refused(make):
    with pytest.raises(RuntimeError, match="AMSGrad"):
        make(fresh_params(torch.float32), amsgrad=True)


def test_wrong_options_are_refused():
    params = fresh_params(torch.float32)
    for wrong in ({"lr": -1}, {"weight_decay": -1}, {"momentum": -1}, {"nesterov": True}):
        with pytest.raises(ValueError):
            optimizers.FusedSGD(params, **dict({"lr": 0.1}, **wrong))
    with pytest.raises(ValueError, match="norm_type"):
        optimizers.FusedNovoGrad(params, norm_type=1)
    with pytest.raises(ValueError, match="learning rate"):
        optimizers.FusedSGD(params)
    with pytest.raises(RuntimeError, match="before 2019"):
        optimizers.FusedAdam(params).step(scale=2.0)


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = optimizers.FusedAdam(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("make, formula, options", PLAIN, ids=[case[0].__name__ for case in PLAIN])
def test_zero_grad_follows_set_grad_none(make, formula, options, expected):
    if make is optimizers.FusedMixedPrecisionLamb and not expected:
        pytest.skip("this one has no such option, in Apex neither")
    params = fresh_params(torch.float32)
    chosen = {} if make is optimizers.FusedMixedPrecisionLamb else {"set_grad_none": expected}
    optimizer = made(make, dict(options, **chosen), params)
    set_gradients(params, 0)
    optimizer.zero_grad()
    assert all((param.grad is None) == expected for param in params)
    assert expected or all((param.grad == 0).all() for param in params)


def test_a_closure_computes_the_loss_with_gradients():
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = optimizers.FusedAdam([param], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0 and (param < 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [optimizers.FusedAdam, optimizers.FusedMixedPrecisionLamb])
def test_float32_copies_keep_what_half_params_would_lose(make, dtype):
    mode = {"master_weights": True} if make is optimizers.FusedAdam else {"reduced_precision_dtype": dtype}
    param = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = make([param], lr=1e-5, weight_decay=0.0, **mode)
    for _ in range(1000):
        param.grad = torch.ones(4, dtype=dtype)
        optimizer.step()
    assert torch.allclose(param.float(), torch.full((4,), 0.99), atol=EPS[dtype])
    assert torch.allclose(optimizer.state[param]["master_param"], torch.full((4,), 0.99), atol=1e-5)


def test_a_tensor_is_taken_as_learning_rate():
    runs = []
    for lr in (0.125, torch.tensor(0.125)):
        optimizer = made(optimizers.FusedAdam, {"lr": lr}, fresh_params(torch.float32))
        train(optimizer, 3)
        runs.append(optimizer)
    for one, other in zip(*map(params_of, runs)):
        assert torch.allclose(one, other, rtol=1e-6)


def test_norms_in_checkpoints_of_apex_novograd_are_read():
    """Apex kept them in each group: a tensor for the half params, one for the others."""
    optimizer = made(optimizers.FusedNovoGrad, {}, fresh_params(torch.float32))
    train(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        norms = [saved["state"][key].pop("exp_avg_sq") for key in group["params"]]
        group["exp_avg_sq"] = [torch.empty(0), torch.stack(norms)]
    clones = [torch.nn.Parameter(param.detach().clone()) for param in params_of(optimizer)]
    resumed = made(optimizers.FusedNovoGrad, {}, clones)
    resumed.load_state_dict(saved)
    train(optimizer, 1, first=2)
    train(resumed, 1, first=2)
    assert same_weights(optimizer, resumed)


@pytest.mark.parametrize(
    "torch_class, apex_class, options",
    [
        (torch.optim.Adam, optimizers.FusedAdam, {"adam_w_mode": False}),
        (torch.optim.AdamW, optimizers.FusedAdam, {}),
        (torch.optim.SGD, optimizers.FusedSGD, {"momentum": 0.9}),
    ],
    ids=["Adam", "AdamW", "SGD"],
)
def test_a_checkpoint_of_torchs_own_optimizer_can_be_resumed(torch_class, apex_class, options):
    shared = {name: value for name, value in options.items() if name != "adam_w_mode"}
    optimizer = made(torch_class, shared, fresh_params(torch.float64))
    train(optimizer, 3)
    clones = [torch.nn.Parameter(param.detach().clone()) for param in params_of(optimizer)]
    resumed = made(apex_class, options, clones)
    resumed.load_state_dict(optimizer.state_dict())
    train(optimizer, 2, first=3)
    train(resumed, 2, first=3)
    for one, other in zip(params_of(optimizer), params_of(resumed)):
        assert torch.allclose(one, other, rtol=1e-12)


def test_state_that_apex_saved_in_half_becomes_float32():
    optimizer = made(optimizers.FusedLAMB, {}, fresh_params(torch.float16))
    train(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state.update({name: value.half() for name, value in state.items()})
    optimizer.load_state_dict(saved)
    train(optimizer, 1, first=2)
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}


def test_sgd_that_loads_no_momentum_starts_with_the_gradient_undampened():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = optimizers.FusedSGD([weight], lr=0.1, momentum=0.9, dampening=0.5)
    optimizer.state[weight]["momentum_buffer"] = None  # as torch.optim.SGD saves it without a momentum
    weight.grad = torch.tensor([4.0, -2.0])
    optimizer.step()
    assert torch.allclose(weight.detach(), torch.tensor([0.6, 2.2]))
