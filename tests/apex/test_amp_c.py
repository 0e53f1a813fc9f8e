"""The functions of amp_C and apex_C as scripts call them: through ``multi_tensor_applier``, values and flag."""

import importlib
import math

import optimizer_formulas as formulas
import pytest
import torch
from helpers.dispatched import Watch
from optimizer_cases import same

from ampcompat.apex import install
from ampcompat.apex.multi_tensor import functions
from ampcompat.support.torch_compat import features

F32 = torch.float32
SHAPES = [(4, 3), (5,), (2, 1, 2)]


@pytest.fixture(autouse=True)
def amp_c():
    install.install()
    yield importlib.import_module("amp_C")
    install.uninstall()


def flag():
    return torch.zeros(1, dtype=torch.int32)


def randoms(seed, dtype=F32, positive=False):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    return [tensor.abs() for tensor in made] if positive else made


def doubled(tensors):
    return [tensor.double().clone() for tensor in tensors]


def close(tensors, right, eps=64 * 2.0**-23):
    rows = [(one.double(), other) for one, other in zip(tensors, right)]
    return all((one - other).abs().max() <= eps * max(1.0, other.abs().max()) for one, other in rows)


def applied(name, noop, tensor_lists, *args):
    from apex.multi_tensor_apply import multi_tensor_applier

    return multi_tensor_applier(getattr(importlib.import_module("amp_C"), name), noop, tensor_lists, *args)


def test_the_applier_is_available_only_while_every_function_is_there(monkeypatch):
    from apex.multi_tensor_apply import MultiTensorApply, multi_tensor_applier

    assert multi_tensor_applier.available and MultiTensorApply(8).available
    monkeypatch.delattr(functions, "multi_tensor_lamb")
    assert not multi_tensor_applier.available
    with pytest.raises(RuntimeError):
        multi_tensor_applier.check_avail()


def test_every_function_is_in_amp_c(amp_c):
    assert all(getattr(amp_c, name) is getattr(functions, name) for name in functions.__all__)


def test_the_modules_leave_with_the_alias():
    install.uninstall()
    for name in ("amp_C", "apex_C"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


@pytest.mark.parametrize("source", [F32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", [F32, torch.float16], ids=str)
def test_scale_multiplies_and_casts(source, target):
    sources, targets, noop = randoms(1, source), randoms(2, target), flag()
    applied("multi_tensor_scale", noop, [sources, targets], 0.25)
    assert all(same(out, (each.float() * 0.25).to(target)) for each, out in zip(sources, targets))
    assert noop.item() == 0


@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
@pytest.mark.parametrize("source", [F32, torch.float16], ids=str)
def test_one_tensor_is_scaled_and_checked_as_before_march_2019(amp_c, source, bad):
    (tensor, _, _), target, noop = randoms(1, source), torch.zeros(SHAPES[0]), flag()
    if bad is not None:
        tensor[1, 2] = bad
    amp_c.scale_check_overflow(tensor, 0.25, noop, target)
    assert noop.item() == (bad is not None)
    assert bad is not None or same(target, tensor.float() * 0.25)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["multi_tensor_scale", "multi_tensor_axpby"])
def test_inf_and_nan_set_the_flag_and_the_result_is_written(name, bad):
    sources, others, targets, noop = randoms(1), randoms(2), randoms(3), flag()
    sources[1][2] = bad
    if name == "multi_tensor_axpby":
        applied(name, noop, [sources, others, targets], 2.0, 3.0, 0)
    else:
        applied(name, noop, [sources, targets], 2.0)
        assert same(targets[0], sources[0] * 2.0) and not (targets[1] - targets[1] == 0).all()
    assert noop.item() == 1


def test_axpby_adds_and_checks_the_given_argument():
    for looks_at, expected in ((-1, 1), (0, 0), (1, 1)):
        xs, ys, outs, noop = randoms(1), randoms(2), randoms(3), flag()
        ys[0][0, 0] = math.inf
        applied("multi_tensor_axpby", noop, [xs, ys, outs], 2.0, -3.0, looks_at)
        assert noop.item() == expected
        assert torch.allclose(outs[1], 2.0 * xs[1] - 3.0 * ys[1])


@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name, factor", [("l2norm", None), ("l2norm_mp", None), ("unscale_l2norm", 0.25)])
def test_norms_are_of_all_and_of_each_and_inf_sets_the_flag(name, factor, dtype):
    tensors, noop = randoms(1, dtype) + [torch.zeros(0, dtype=dtype)], flag()
    name, before = "multi_tensor_" + name, doubled(tensors)
    args = [] if factor is None else [torch.tensor([factor])]
    total, each = applied(name, noop, [tensors], *args, True)
    right = [(factor or 1.0) * float((tensor**2).sum().sqrt()) for tensor in before]
    assert each.tolist() == pytest.approx(right, rel=1e-6) and noop.item() == 0
    assert total.shape == (1,) and total.item() == pytest.approx(math.sqrt(sum(norm**2 for norm in right)), rel=1e-6)
    assert all(torch.equal(one.double(), other) for one, other in zip(tensors, before))
    total, each = applied(name, noop, [tensors], *args)
    assert each.numel() == 0 and total.dtype == F32
    for bad in (math.inf, -math.inf, math.nan):
        tensors[1][0], noop = bad, flag()
        assert not math.isfinite(applied(name, noop, [tensors], *args)[0].item()) and noop.item() == 1


def test_l2norm_of_half_tensors_does_not_overflow():
    total, _ = applied("multi_tensor_l2norm", flag(), [[torch.full((100,), 60000.0, dtype=torch.float16)]])
    assert total.item() == pytest.approx(600000.0)


def test_l2norm_scale_writes_scaled_tensors_and_returns_the_norm_before_that():
    tensors, outs = randoms(1), randoms(2)
    total, each = applied("multi_tensor_l2norm_scale", flag(), [tensors, outs], 0.5, True)
    assert all(same(out, tensor * 0.5) for tensor, out in zip(tensors, outs))
    right = applied("multi_tensor_l2norm", flag(), [tensors], True)
    assert torch.equal(total, right[0]) and torch.equal(each, right[1])


class Hysteresis:
    """The update of a scale on plain numbers."""

    def __init__(self, scale, hysteresis, growth, backoff, interval):
        self.scale, self.good, self.left = scale, 0, hysteresis
        self.options = (growth, backoff, interval, hysteresis)

    def update(self, overflowed):
        growth, backoff, interval, hysteresis = self.options
        if overflowed:
            self.good, self.left = 0, self.left - 1
            if self.left <= 0:
                self.scale *= backoff
            return
        self.good, self.left = self.good + 1, hysteresis
        if self.good == interval:
            self.good = 0
            if self.scale * growth < 2.0**128:
                self.scale *= growth


@pytest.mark.parametrize("start, hysteresis, interval", [(2.0**16, 1, 3), (2.0**16, 3, 4), (2.0**126, 2, 1)])
def test_a_scale_backs_off_when_no_overflow_is_tolerated_any_more(amp_c, start, hysteresis, interval):
    scale, found = torch.tensor([start]), torch.zeros(1)
    good, left = torch.zeros(1, dtype=torch.int32), torch.tensor([hysteresis], dtype=torch.int32)
    right = Hysteresis(start, hysteresis, 4.0, 0.5, interval)
    for step in [0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]:
        found.fill_(step)
        returned = amp_c.update_scale_hysteresis(scale, good, left, found, 4.0, 0.5, interval, hysteresis)
        right.update(step)
        assert returned is scale and (scale.item(), good.item(), left.item()) == (right.scale, right.good, right.left)


def test_a_scale_that_would_be_subnormal_becomes_0(amp_c):
    scale, count = torch.tensor([2.0**-126]), torch.zeros(1, dtype=torch.int32)
    amp_c.update_scale_hysteresis(scale, count, count.clone(), torch.ones(1), 2.0, 0.5, 10, 1)
    assert scale.item() == 0.0  # as in Apex's kernel, which has no subnormal numbers


ADAM = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.2, "adam_w_mode": True, "bias_correction": True}
#: As the functions take them: learning rate, betas, eps, step, whether decay is decoupled, correction, weight decay.
ADAM_NUMBERS = (0.1, 0.9, 0.99, 1e-6, 3, 1, 1, 0.2)
CAPTURED = (torch.tensor(0.1), 0.9, 0.99, 1e-6, torch.tensor([3], dtype=torch.int32), 1, 1, 0.2, torch.tensor([0.25]))


def stepped(formula, rows, options, step=3, names=("m", "v"), divisor=1.0):
    """Return the weights and the state after a step in float64, list by list; rows are gradients, weights and state."""
    results = []
    for gradient, weight, *state in zip(*map(doubled, rows)):
        state = dict(zip(names, state))
        results.append([formula(weight, gradient, state, step, divisor, options)] + list(state.values()))
    return list(zip(*results))


def adam_rows(dtype=F32):
    return [randoms(1, dtype), randoms(2, dtype), randoms(3), randoms(4, positive=True)]


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=str)
@pytest.mark.parametrize("mode, correct", [(0, 1), (1, 1), (1, 0)])
def test_adam(mode, correct, dtype):
    rows = adam_rows(dtype)
    right = stepped(formulas.adam, rows, dict(ADAM, adam_w_mode=mode, bias_correction=correct))
    applied("multi_tensor_adam", flag(), rows, *ADAM_NUMBERS[:5], mode, correct, 0.2)
    assert close(rows[1], right[0], 64 * 2.0**-23 if dtype is F32 else 2.0**-10)
    assert close(rows[2], right[1]) and close(rows[3], right[2])


def test_adam_capturable_takes_its_numbers_as_tensors():
    rows = adam_rows()
    right = stepped(formulas.adam, rows, ADAM)
    rows[0] = [tensor * 4 for tensor in rows[0]]
    applied("multi_tensor_adam_capturable", flag(), rows, *CAPTURED)
    assert all(map(close, rows[1:], right))


def test_adam_capturable_master_updates_float32_params_and_rounds_them_into_half_ones():
    rows = [randoms(1, torch.float16)] + adam_rows()[1:]
    halves = [tensor.half() for tensor in rows[1]]
    right = stepped(formulas.adam, rows, ADAM)
    given = [[(tensor.float() * 4).half() for tensor in rows[0]], halves, rows[2], rows[3], rows[1]]
    applied("multi_tensor_adam_capturable_master", flag(), given, *CAPTURED)
    assert all(map(close, rows[1:], right))
    assert all(same(half, master.half()) for half, master in zip(halves, rows[1]))


def test_sgd_with_casts():
    gradients, weights, buffers = randoms(1, torch.float16), randoms(2), randoms(3)
    copies = randoms(4, torch.float16)
    g, p, b = map(doubled, (gradients, weights, buffers))
    lists = [gradients, weights, buffers, copies]
    applied("multi_tensor_sgd", flag(), lists, 0.1, 0.9, 0.2, 0.05, False, False, False, 0.5)
    b = [0.9 * buffer + 0.8 * (0.5 * grad + 0.1 * param) for grad, param, buffer in zip(g, p, b)]
    assert close(buffers, b) and close(weights, [param - 0.05 * buffer for param, buffer in zip(p, b)])
    assert all(same(copy, weight.half()) for copy, weight in zip(copies, weights))


def test_sgds_first_run_ignores_what_the_buffers_held():
    gradients, weights, buffers = randoms(1), randoms(2), [torch.full(shape, math.nan) for shape in SHAPES]
    p = doubled(weights)
    applied("multi_tensor_sgd", flag(), [gradients, weights, buffers], 0.0, 0.9, 0.2, 0.05, False, True, False)
    assert close(weights, [param - 0.05 * grad.double() for param, grad in zip(p, gradients)])


@pytest.mark.parametrize("mode", [0, 1])
def test_adagrad(mode):
    rows = [randoms(1), randoms(2), randoms(3, positive=True)]
    options = {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.2, "adagrad_w_mode": mode}
    right = stepped(formulas.adagrad, rows, options, names="s")
    applied("multi_tensor_adagrad", flag(), rows, 0.1, 1e-6, mode, 0.2)
    assert all(map(close, rows[1:], right))


@pytest.mark.parametrize("norm_type", [0, 2])
def test_novograd_updates_the_norms_too(norm_type):
    rows, norms = adam_rows()[:3], torch.tensor([0.5, 1.0, 2.0])
    options = {"lr": 0.1, "betas": (0.9, 0.8), "eps": 1e-6, "weight_decay": 0.2, "norm_type": norm_type}
    options.update(init_zero=False, bias_correction=True, grad_averaging=True)
    weights, means, right_norms = stepped(formulas.novograd, rows + [list(norms)], options, 2, ("m", "n"))
    applied("multi_tensor_novograd", flag(), rows, norms, 0.1, 0.9, 0.8, 1e-6, 2, 1, 0.2, 1, 1, norm_type)
    assert close(rows[1], weights) and close(rows[2], means) and close(norms, right_norms, 1e-6)


@pytest.mark.parametrize("nvlamb, decay", [(False, 0.2), (False, 0.0), (True, 0.0)])
@pytest.mark.parametrize("limit", [1.0, 1000.0])
def test_lamb_whole_in_stages_and_with_tensors(nvlamb, decay, limit):
    norm, _ = applied("multi_tensor_l2norm", flag(), [randoms(1)])
    options = dict(ADAM, weight_decay=decay, use_nvlamb=nvlamb, grad_averaging=True)
    right = stepped(formulas.lamb, adam_rows(), options, divisor=max(1.0, norm.item() / limit))[0]

    whole = adam_rows()
    applied("multi_tensor_lamb", flag(), whole, 0.1, 0.9, 0.99, 1e-6, 3, 1, decay, 1, 1, norm, limit, nvlamb)
    assert close(whole[1], right)

    staged = adam_rows() + [[torch.empty(shape) for shape in SHAPES]]
    decays = torch.full((len(SHAPES),), decay)
    applied("multi_tensor_lamb_stage1_cuda", flag(), staged, decays, 2, 0.9, 0.99, 1e-6, norm, limit)
    norms = [applied("multi_tensor_l2norm", flag(), [each], True)[1] for each in (staged[1], staged[4])]
    applied("multi_tensor_lamb_stage2_cuda", flag(), [staged[1], staged[4]], norms[0], norms[1], 0.1, decay, nvlamb)
    assert close(staged[1], right)

    mixed = adam_rows()
    mixed[0] = [tensor * 8 for tensor in mixed[0]]
    mixed.append(randoms(5, torch.float16))
    numbers = (torch.tensor(0.1), 0.9, 0.99, 1e-6, torch.tensor([3], dtype=torch.int32), 1, decay, 1, 1)
    scaled = (norm * 8, torch.tensor([limit * 8]), nvlamb, torch.zeros(1), torch.tensor([0.125]))
    applied("multi_tensor_lamb_mp", flag(), mixed, *(numbers + scaled))
    assert close(mixed[1], right)
    assert all(same(copy, weight.half()) for copy, weight in zip(mixed[4], mixed[1]))


CALLS = {
    "multi_tensor_adam": (4, (0.1, 0.9, 0.99, 1e-6, 3, 1, 1, 0.2)),
    "multi_tensor_sgd": (3, (0.1, 0.9, 0.0, 0.1, False, False, False, 1.0)),
    "multi_tensor_adagrad": (3, (0.1, 1e-6, 0, 0.1)),
    "multi_tensor_novograd": (3, (torch.ones(3), 0.1, 0.9, 0.8, 1e-6, 2, 1, 0.2, 1, 1, 2)),
    "multi_tensor_lamb": (4, (0.1, 0.9, 0.99, 1e-6, 3, 1, 0.1, 1, 1, torch.ones(1), 1.0, False)),
    "multi_tensor_lamb_stage1_cuda": (5, (torch.ones(3), 2, 0.9, 0.99, 1e-6, torch.ones(1), 1.0)),
    "multi_tensor_lamb_stage2_cuda": (2, (torch.ones(3), torch.ones(3), 0.1, 0.1, False)),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_where_the_flag_is_set_nothing_is_updated(name):
    count, args = CALLS[name]
    tensor_lists = [randoms(seed, positive=True) for seed in range(count)]
    before = [[tensor.clone() for tensor in each] for each in tensor_lists]
    applied(name, torch.ones(1, dtype=torch.int32), tensor_lists, *args)
    assert all(same(old, new) for olds, news in zip(before, tensor_lists) for old, new in zip(olds, news))
    applied(name, flag(), tensor_lists, *args)
    assert not all(same(old, new) for olds, news in zip(before, tensor_lists) for old, new in zip(olds, news))


@pytest.mark.skipif(
    not features.has_flagged_sgd("cpu"), reason="this torch has no update that a flag forbids, on the CPU"
)
@pytest.mark.parametrize("name", sorted(set(CALLS) - {"multi_tensor_lamb_stage1_cuda"}))
def test_the_host_does_not_read_the_flag_where_the_device_can_skip(name):
    count, args = CALLS[name]
    tensor_lists = [randoms(seed, positive=True) for seed in range(count)]
    with Watch() as watch:
        applied(name, flag(), tensor_lists, *args)
    assert watch.reads == 0


def test_flatten_and_unflatten_are_each_others_inverse():
    apex_c = importlib.import_module("apex_C")
    tensors = randoms(1) + [torch.tensor(3.0), randoms(2)[0].t()]
    flat = apex_c.flatten(tensors)
    assert flat.shape == (sum(tensor.numel() for tensor in tensors),)
    parts = apex_c.unflatten(flat, tensors)
    assert all(same(part, tensor) for part, tensor in zip(parts, tensors))
    flat.zero_()
    assert (parts[0] == 0).all()
