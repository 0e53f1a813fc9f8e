"""fp16_utils: conversions, master lists, loss scalers, and FP16_Optimizer's loops against float64 written by hand."""

import pickle

import pytest
import torch
from helpers.copies import saved_and_loaded
from helpers.dispatched import Watch
from helpers.precision import HIGH, LOW

from ampcompat.apex import fp16_utils
from ampcompat.apex.fp16_utils import DynamicLossScaler, FP16_Optimizer, LossScaler
from ampcompat.errors import AmpError, AmpTypeError, AmpValueError, GradientOverflowError
from ampcompat.support.torch_compat import features


def make_network():
    """Return a network with batch norms with and without weights, a buffer of integers, and a recurrent layer."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, affine=False), torch.nn.Linear(4, 2)
    ).to(HIGH)
    network.register_buffer("table", torch.arange(3))
    return network


def dtypes_of(module):
    return {name: tensor.dtype for name, tensor in module.state_dict().items()}


# -- conversions -------------------------------------------------------------------------------------------------------


def test_network_to_half_keeps_batch_norms_with_weights_in_float():
    network = make_network()
    half = fp16_utils.network_to_half(network)
    assert half[1] is network and isinstance(half[0], fp16_utils.tofp16)
    found = dtypes_of(network)
    assert found["0.weight"] is found["3.bias"] is found["2.running_mean"] is LOW
    assert found["1.weight"] is found["1.running_var"] is HIGH and found["table"] is torch.int64
    assert half[0](torch.ones(1, dtype=HIGH)).dtype is LOW


def test_convert_network_does_the_same_in_place_and_takes_gradients_along():
    network = make_network()
    weight = network[0].weight
    weight.grad = torch.ones_like(weight)
    assert fp16_utils.convert_network(network, dtype=LOW) is network and network[0].weight is weight
    assert weight.dtype is weight.grad.dtype is LOW
    found = dtypes_of(network)
    assert found["1.weight"] is found["1.running_mean"] is HIGH and found["2.running_mean"] is LOW
    assert found["table"] is torch.int64


def test_convert_module_leaves_the_modules_within_alone():
    network = make_network()
    network.register_buffer("rates", torch.ones(2, dtype=HIGH))
    fp16_utils.convert_module(network, LOW)
    assert network.rates.dtype is LOW and network[0].weight.dtype is HIGH


def test_fp16_model_casts_its_inputs_but_not_integers():
    class Lookup(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2).to(HIGH)

        def forward(self, x, index):
            return self.linear(x)[index]

    model = fp16_utils.FP16Model(Lookup())
    assert model(torch.ones(4, 3, dtype=HIGH), torch.tensor([0, 2])).dtype is LOW
    assert model.network.linear.weight.dtype is LOW


def test_numbers_come_out_of_tensors():
    assert fp16_utils.to_python_float(torch.tensor([2.5])) == fp16_utils.to_python_float([2.5]) == 2.5
    assert fp16_utils.clip_grad_norm is torch.nn.utils.clip_grad_norm_


# -- masters as lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
def test_a_loop_over_master_lists_is_sgd_on_float_masters(flat):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).to(LOW)
    model[1].bias.requires_grad_(False)
    params, masters = fp16_utils.prep_param_lists(model, flat_master=flat)
    assert len(params) == 3 and len(masters) == (1 if flat else 3)
    assert all(master.dtype is HIGH and master.is_leaf and master.requires_grad for master in masters)
    expected = [param.detach().double().clone() for param in params]
    optimizer = torch.optim.SGD(masters, lr=2.0**-9)
    for step in range(3):
        model.zero_grad()
        for index, param in enumerate(params):
            param.grad = torch.full_like(param, 2.0 ** (index + step)) if index or not flat else None
        fp16_utils.model_grads_to_master_grads(params, masters, flat_master=flat)
        optimizer.step()
        fp16_utils.master_params_to_model_params(params, masters, flat_master=flat)
        for index in range(3):
            if index or not flat:
                expected[index] -= 2.0**-9 * 2.0 ** (index + step)
    for param, value in zip(params, expected):
        assert torch.equal(param, value.to(HIGH).to(LOW))
    found = torch.cat([master.detach().reshape(-1) for master in masters]).double()
    assert (found - torch.cat([value.reshape(-1) for value in expected])).abs().max() < 1e-6


def test_a_param_without_gradient_leaves_its_master_without_one():
    params, masters = fp16_utils.prep_param_lists(torch.nn.Linear(2, 1).to(LOW))
    params[0].grad = torch.ones_like(params[0])
    for master in masters:
        master.grad = torch.zeros_like(master)
    fp16_utils.model_grads_to_master_grads(params, masters)
    assert torch.equal(masters[0].grad, torch.ones_like(masters[0])) and masters[1].grad is None


def test_a_flat_master_needs_params_of_one_dtype():
    with pytest.raises(AmpTypeError, match="flat_master=False"):
        fp16_utils.prep_param_lists(fp16_utils.BN_convert_float(make_network().to(LOW)), flat_master=True)
    with pytest.raises(AmpValueError, match="no param"):
        fp16_utils.prep_param_lists(torch.nn.ReLU(), flat_master=True)


# -- loss scalers ------------------------------------------------------------------------------------------------------


def test_a_static_scaler_scales_and_never_overflows():
    weight = torch.nn.Parameter(torch.ones(1))
    scaler = LossScaler(8)
    scaler.backward((weight * 3).sum(), retain_graph=False)
    assert weight.grad.item() == 24 and not scaler.has_overflow([weight])
    scaler.update_scale(True)
    assert scaler.loss_scale == 8
    assert scaler.scale_gradient(None, (torch.ones(1), None), ()) == (torch.full((1,), 8.0), None)


def test_a_dynamic_scaler_shrinks_at_overflows_and_grows_after_a_window():
    scaler = DynamicLossScaler(init_scale=4, scale_factor=2.0, scale_window=3)
    seen = []
    for overflow in [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0]:
        scaler.update_scale(bool(overflow))
        seen.append(scaler.loss_scale)
    assert seen == [4, 4, 8, 4, 4, 4, 8, 4, 2, 1, 1, 1, 1]
    assert DynamicLossScaler().loss_scale == 2**32
    assert pickle.loads(pickle.dumps(scaler)).__dict__ == scaler.__dict__


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_dynamic_scaler_looks_at_every_gradient(bad):
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    scaler = DynamicLossScaler()
    assert not scaler.has_overflow(params)
    for param in params[:3]:
        param.grad = torch.ones(3)
    assert not scaler.has_overflow(params)
    params[2].grad[1] = bad
    assert scaler.has_overflow(iter(params))
    sparse = torch.nn.Parameter(torch.ones(3))
    sparse.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([bad]), (3,))
    assert scaler.has_overflow([sparse])


# -- FP16_Optimizer ----------------------------------------------------------------------------------------------------


class Mixed(torch.nn.Module):
    """``sum(x * a + x * b)`` with a low param, a high one, and a low one that is frozen."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor([1.0, 0.5], dtype=LOW))
        self.b = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=HIGH))
        self.frozen = torch.nn.Parameter(torch.ones(2, dtype=LOW), requires_grad=False)

    def forward(self, x):
        # Elementwise products in the high dtype: old torch has no low ones on the CPU.
        return (x * self.a.to(HIGH)).sum() + (x * self.b).sum() + self.frozen.to(HIGH).sum()


X = torch.tensor([2.0**-3, -(2.0**-5)], dtype=HIGH)  # times 2**16, and added up, they fit into float16
RATE = 2.0**-10


def make_mixed(**keywords):
    model = Mixed()
    optimizer = torch.optim.SGD(
        [{"params": [model.a, model.frozen]}, {"params": [model.b], "lr": 2 * RATE}], lr=RATE, momentum=0.5
    )
    return model, FP16_Optimizer(optimizer, **keywords)


class Momentum:
    """SGD with momentum 1/2 on the masters, in float64."""

    def __init__(self, model):
        self.values = [model.a.detach().double().clone(), model.b.detach().double().clone()]
        self.momenta = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]

    def step(self, factor=1.0):
        for index, rate in enumerate((RATE, 2 * RATE)):
            self.momenta[index] = self.momenta[index] * 0.5 + factor * X.double()
            self.values[index] = self.values[index] - rate * self.momenta[index]

    def agrees_with(self, model, optimizer):
        master, high = optimizer.fp32_from_fp16_groups[0][0], model.b
        for tensor, value in ((master, self.values[0]), (high, self.values[1])):
            if (tensor.detach().double() - value).abs().max() > 1e-6:
                return False
        return torch.equal(model.a.detach(), master.detach().to(LOW))


def train(model, optimizer, factors):
    """Step once per factor of the loss."""
    for factor in factors:
        optimizer.zero_grad()
        optimizer.backward(model(X) * factor)
        optimizer.step()


SCALES = [
    {},
    {"static_loss_scale": 128.0},
    {"static_loss_scale": "128"},
    {"dynamic_loss_scale": True},
    {"dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 4.0, "scale_window": 2}},
]


@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_a_loop_trains_float_masters(scales):
    model, optimizer = make_mixed(**scales)
    reference = Momentum(model)
    for _ in range(5):
        train(model, optimizer, [1.0])
        reference.step()
    assert reference.agrees_with(model, optimizer)
    assert optimizer.param_groups[0]["params"][0] is optimizer.fp32_from_fp16_groups[0][0]
    assert optimizer.param_groups[0]["params"][1] is model.frozen
    assert all(state["momentum_buffer"].dtype is HIGH for state in optimizer.state.values())
    if "dynamic_loss_args" in scales:
        assert optimizer.loss_scale == 16.0


@pytest.mark.parametrize("updates_each_time", [False, True])
@pytest.mark.parametrize("scales", SCALES[1:], ids=str)
def test_gradients_of_several_passes_add_up(scales, updates_each_time):
    model, optimizer = make_mixed(**scales)
    reference = Momentum(model)
    for sets_to_none in (True, False):
        optimizer.zero_grad(set_grads_to_None=sets_to_none)
        for last in (False, False, True):
            optimizer.backward(model(X), update_master_grads=updates_each_time or last)
        optimizer.step()
        reference.step(3.0)
    assert reference.agrees_with(model, optimizer)


def test_update_master_grads_by_hand_and_clipping():
    model, optimizer = make_mixed(static_loss_scale=64.0)
    loss = model(X)
    optimizer.backward(loss, update_master_grads=False, retain_graph=True)
    assert torch.equal(model.b.grad, 64 * X) and optimizer.fp32_from_fp16_groups[0][0].grad is None
    optimizer.backward(loss, update_master_grads=False)
    optimizer.update_master_grads()
    assert torch.equal(model.b.grad, 2 * X)
    (first, frozen), (second,) = optimizer.inspect_master_grad_data()
    assert torch.equal(first, 2 * X) and frozen is None and torch.equal(second, 2 * X)
    norm = optimizer.clip_master_grads(0.125)
    assert float(norm) == pytest.approx((2 * 4 * (2.0**-6 + 2.0**-10)) ** 0.5)
    clipped = torch.cat([grad for group in optimizer.inspect_master_grad_data() for grad in group if grad is not None])
    assert float(clipped.norm()) == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("verbose", [True, False])
def test_an_overflow_skips_one_step_and_halves_the_scale(verbose, bad, capsys):
    model, optimizer = make_mixed(dynamic_loss_scale=True, verbose=verbose)
    reference = Momentum(model)
    for factor in (1.0, bad, 1.0):
        optimizer.zero_grad()
        optimizer.backward(model(X) * factor)
        assert optimizer.overflow is (factor != 1.0)
        if factor != 1.0:
            assert optimizer.clip_master_grads(1.0) == -1 and optimizer.inspect_master_grad_data() is None
        else:
            reference.step()
        optimizer.step()
    assert optimizer.loss_scale == 2.0**15 and reference.agrees_with(model, optimizer)
    assert capsys.readouterr().out.count("Skipping step, reducing loss scale to 32768.0") == int(verbose)


def test_a_static_scale_skips_nothing():
    model, optimizer = make_mixed(static_loss_scale=2.0)
    optimizer.backward(model(X) * float("inf"))
    optimizer.step()
    assert not optimizer.overflow and not torch.isfinite(model.b).any()


def test_the_scale_can_be_set():
    model, optimizer = make_mixed(dynamic_loss_scale=True)
    optimizer.loss_scale = 8.0
    optimizer.backward(model(X), update_master_grads=False)
    assert optimizer.loss_scale == 8.0 and torch.equal(model.b.grad, 8 * X)
    for scale in (0, -1.0, "much"):
        with pytest.raises(AmpError):
            make_mixed(static_loss_scale=scale)


def closure_of(optimizer, loss_of):
    """Return a closure that computes a loss, its gradients too."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of()
        optimizer.backward(loss)
        return loss

    return closure


class Twice(torch.optim.SGD):
    """Calls its closure twice a step, and moves between the calls."""

    def step(self, closure):
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
            super().step()
        return loss


def test_closures_see_the_params_that_the_optimizer_has_moved():
    model = Mixed()
    optimizer = FP16_Optimizer(Twice([model.a], lr=0.25), dynamic_loss_scale=True)
    seen = []

    def loss_of():
        seen.append(model.a.detach().clone())
        return (X * model.a.to(HIGH)).sum()

    loss = optimizer.step(closure_of(optimizer, loss_of))
    starts = [torch.tensor([1.0, 0.5], dtype=HIGH) - 0.25 * step * X for step in range(3)]
    assert [value.tolist() for value in seen] == [value.tolist() for value in starts[:2]]
    assert model.a.tolist() == starts[2].tolist() and loss.item() == (X * starts[1]).sum().item()


def test_an_overflow_within_a_closure_runs_it_again(capsys):
    model = Mixed()
    optimizer = FP16_Optimizer(torch.optim.SGD([model.a], lr=0.25), dynamic_loss_scale=True)
    factors = iter([float("inf"), float("nan"), 1.0])
    optimizer.step(closure_of(optimizer, lambda: (X * model.a.to(HIGH)).sum() * next(factors)))
    assert optimizer.loss_scale == 2.0**14 and model.a.tolist() == [1.0 - 2.0**-5, 0.5 + 2.0**-7]
    assert capsys.readouterr().out.count("within the closure") == 2


def test_a_closure_that_overflows_for_ever_is_given_up():
    model, optimizer = make_mixed(dynamic_loss_scale=True, verbose=False)
    with pytest.raises(GradientOverflowError, match="in a row"):
        optimizer.step(closure_of(optimizer, lambda: model(X) * float("nan")))
    assert optimizer.first_closure_call_this_step and model.a.tolist() == [1.0, 0.5]


def test_lbfgs_minimizes_through_closures():
    target = torch.tensor([3.0, -2.0], dtype=HIGH)
    weight = torch.nn.Parameter(torch.zeros(2, dtype=LOW))
    optimizer = FP16_Optimizer(torch.optim.LBFGS([weight], lr=0.5), dynamic_loss_scale=True, verbose=False)
    for _ in range(3):
        optimizer.step(closure_of(optimizer, lambda: ((weight.to(HIGH) - target) ** 2).sum()))
    assert (weight.detach().to(HIGH) - target).abs().max() < 1e-2


def test_state_from_before_is_widened_and_kept():
    model = Mixed()
    inner = torch.optim.SGD([model.a], lr=0.5, momentum=0.5)
    inner.state[model.a]["momentum_buffer"] = torch.tensor([4.0, 2.0], dtype=LOW)
    optimizer = FP16_Optimizer(inner)
    (master,) = optimizer.fp32_from_fp16_groups[0]
    assert list(optimizer.state) == [master] and optimizer.state[master]["momentum_buffer"].dtype is HIGH
    optimizer.backward((X * model.a.to(HIGH)).sum())
    optimizer.step()
    assert master.tolist() == [1.0 - 0.5 * (2.0 + 2.0**-3), 0.5 - 0.5 * (1.0 - 2.0**-5)]


@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_a_resumed_run_is_the_uninterrupted_one(scales):
    steps = (1.0, 0.3, -0.7, 0.11, 1.3, 0.9)
    whole = make_mixed(**scales)
    train(*whole, steps)
    model, optimizer = make_mixed(**scales)
    train(model, optimizer, steps[:3])
    saved = saved_and_loaded({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    resumed, optimizer = make_mixed(**scales)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, steps[3:])
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), resumed.parameters()))
    assert torch.equal(whole[1].fp32_from_fp16_groups[0][0], optimizer.fp32_from_fp16_groups[0][0])
    assert whole[1].loss_scaler.state_dict() == optimizer.loss_scaler.state_dict()


@pytest.mark.parametrize("loop", ["optimizer", "scaler"])
def test_the_operations_of_a_pass_do_not_grow_with_the_number_of_params(loop):
    python_dispatch = pytest.importorskip("torch.utils._python_dispatch", reason="this torch cannot count operations")
    if not hasattr(python_dispatch, "TorchDispatchMode") or not hasattr(torch, "_foreach_copy_"):
        pytest.skip("this torch has no operations over lists, or cannot count them")
    if not features.has_foreach_unscale("cpu"):
        pytest.skip("this torch looks for inf in one tensor at a time on the CPU")

    def operations(number):
        params = [torch.nn.Parameter(torch.ones(3, dtype=LOW)) for _ in range(number)]
        optimizer = FP16_Optimizer(torch.optim.SGD(params, lr=0.5, foreach=True), dynamic_loss_scale=True)
        for _ in range(2):  # the first time the masters' gradients are made
            for param in params:
                param.grad = torch.ones(3, dtype=LOW)
            with Watch() as watch:
                if loop == "scaler":
                    DynamicLossScaler().has_overflow(params)
                else:
                    optimizer.update_master_grads()
                    optimizer.step()
        return len(watch.calls)

    assert operations(3) == operations(30) < 20


class ApexScaler:
    """A loss scaler as Apex pickled it into checkpoints."""

    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.mark.parametrize(
    "scaler",
    [
        ApexScaler(_loss_scale=256.0, _unskipped=7, dynamic=True),
        ApexScaler(cur_scale=256.0, cur_iter=10, last_overflow_iter=2, scale_window=1000),
    ],
)
def test_checkpoints_of_apex_load(scaler):
    model, optimizer = make_mixed(dynamic_loss_scale=True)
    saved = dict(optimizer.state_dict(), loss_scaler=scaler)
    saved["fp32_from_fp16"] = [[torch.tensor([7.0, 8.0], dtype=HIGH)], []]
    optimizer.load_state_dict(saved)
    assert optimizer.loss_scaler.state_dict() == {"loss_scale": 256.0, "unskipped": 7}
    assert model.a.tolist() == optimizer.fp32_from_fp16_groups[0][0].tolist() == [7.0, 8.0]
    other = make_mixed(static_loss_scale=2.0)[1]
    other.load_state_dict(saved)
    assert other.loss_scale == 2.0


def test_what_is_no_checkpoint_of_it_is_refused_and_changes_nothing():
    model, optimizer = make_mixed()
    with pytest.raises(AmpError, match="'fp32_from_fp16'"):
        optimizer.load_state_dict(optimizer.optimizer.state_dict())
    saved = optimizer.state_dict()
    saved["fp32_from_fp16"] = [[torch.ones(3)], []]
    with pytest.raises(AmpError, match="shapes"):
        optimizer.load_state_dict(saved)
    assert model.a.tolist() == [1.0, 0.5]
