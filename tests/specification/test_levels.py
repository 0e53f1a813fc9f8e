"""Specification 2: what each level does to weights, functions, masters and state dicts."""

import threading

import pytest
import torch
import torch.nn.functional as F
from helpers.networks import each_setting, initialize, make_batch, make_network, session_of, settings_at, train_step

from ampcompat import amp
from ampcompat.engine.op_table import expansion
from ampcompat.engine.op_table.function_properties import having

WEIGHTS_LEVELS = ("O2", "O3", "O5")
MASTER_LEVELS = ("O2", "O5")
FUNCTION_LEVELS = ("O1", "O4")


def sgd(model, lr=0.125):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)


# -- the dtypes of weights ---------------------------------------------------------------------------------------------


@settings_at("O0", "O1", "O4")
def test_weights_stay_in_float32_below_the_weights_levels(setting, session):
    model = make_network(setting)
    data = [tensor.data_ptr() for tensor in model.state_dict().values()]
    initialize(setting, model, sgd(model))
    assert {p.dtype for p in model.parameters()} == {setting.high}
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == data


@settings_at("O0")
def test_o0_computes_in_float32(setting, session):
    model, (x, _) = make_network(setting).eval(), make_batch(setting)
    expected = model(x)
    initialize(setting, model)
    assert torch.equal(model(x), expected)
    assert torch.mm(x, x.t()).dtype is setting.high


@settings_at(*WEIGHTS_LEVELS)
def test_params_and_buffers_become_half_batch_norm_apart(setting, session):
    model = make_network(setting)
    model[3].register_buffer("shift", torch.zeros(3, dtype=setting.high))
    model[3].register_buffer("ids", torch.arange(3))
    initialize(setting, model, sgd(model))
    norm = setting.low if setting.level == "O3" else setting.high
    assert {model[0].weight.dtype, model[0].bias.dtype, model[3].shift.dtype} == {setting.low}
    assert {model[1].weight.dtype, model[1].bias.dtype, model[1].running_mean.dtype} == {norm}
    assert model[3].ids.dtype is model[1].num_batches_tracked.dtype is torch.int64


@pytest.mark.parametrize(
    "norm", [torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm]
)
@settings_at("O2", "O5")
def test_every_batch_norm_is_kept(setting, norm, session):
    class MyNorm(norm):
        pass

    norms = [norm(3), MyNorm(3), norm(3, affine=False), norm(3, affine=False, track_running_stats=False)]
    model = torch.nn.ModuleList(norms + [torch.nn.LayerNorm(3)]).to(setting.high)
    initialize(setting, model)
    assert [next(iter(m.buffers())).dtype for m in model[:3]] == [setting.high] * 3
    assert model[0].weight.dtype is model[1].weight.dtype is setting.high
    assert model[4].weight.dtype is setting.low


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("norm", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
@settings_at("O2", "O5")
def test_running_statistics_are_float32_and_change_by_less_than_half_can_hold(setting, norm, affine, session):
    """Beyond Apex, where 1,000 updates of half statistics lose what is smaller than their last bit."""
    layer = norm(2, affine=affine, momentum=2.0**-12, track_running_stats=True)
    model = torch.nn.Sequential(layer, torch.nn.Linear(2, 1)).to(setting.high)
    initialize(setting, model)
    x = torch.tensor([[1.0, 3.0], [-1.0, 5.0]], dtype=setting.high)
    if norm is torch.nn.InstanceNorm1d:
        x = x.t().unsqueeze(0)  # one sample of two channels
    output = model(x)
    assert output.dtype is setting.high
    output.sum().backward()
    assert torch.equal(model[0].running_mean, torch.tensor([0.0, 2.0**-10], dtype=setting.high))
    assert torch.equal(model[0].running_var, 1 + torch.tensor([2.0**-12, 2.0**-12], dtype=setting.high))
    model.eval()
    assert model(x).dtype is setting.high


@settings_at(*WEIGHTS_LEVELS)
def test_params_stay_the_same_objects_and_shared_ones_shared(setting, session):
    model = make_network(setting)
    model[3].bias = torch.nn.Parameter(torch.zeros(3, dtype=setting.high))
    model.add_module("tied", torch.nn.Linear(6, 8).to(setting.high))
    model.tied.weight = model[0].weight
    before = [id(param) for param in model.parameters()]
    initialize(setting, model, sgd(model))
    assert [id(param) for param in model.parameters()] == before
    assert model.tied.weight is model[0].weight


# -- functions ---------------------------------------------------------------------------------------------------------


@settings_at(*FUNCTION_LEVELS)
def test_functions_cast_everywhere_in_the_process(setting):
    def dtypes():
        x = torch.ones(2, 2, dtype=setting.high)
        y = x.to(setting.low)
        results = torch.mm(x, x), x.matmul(x), x @ x, F.linear(x, x), F.softmax(y, -1), x + y
        return tuple(result.dtype for result in results)

    expected = (setting.low,) * 4 + (setting.high,) * 2
    with session_of(setting):
        initialize(setting, make_network(setting))
        assert dtypes() == expected
        with torch.no_grad():
            assert dtypes() == expected
        found = []
        thread = threading.Thread(target=lambda: found.append(dtypes()))
        thread.start()
        thread.join()
        assert found == [expected]
    assert dtypes() == (setting.high,) * 4 + (setting.low, setting.high)


@settings_at(*FUNCTION_LEVELS)
def test_outputs_are_not_cast_back(setting, session):
    model, (x, target) = make_network(setting), make_batch(setting)
    initialize(setting, model)
    assert model(x).dtype is setting.low
    assert model.eval()(x).dtype is setting.low
    assert F.cross_entropy(model(x), target).dtype is setting.high


@settings_at("O0", "O2", "O3", "O5")
def test_other_levels_patch_no_functions_but_those_that_refuse_half_arguments(setting):
    products = {row.name for row in expansion.rows() if row.rule == expansion.HALF}
    refuse = products.union(*map(having, ("numbers", "source", "refuses_mixed", "is_norm")))
    refuse |= {row.name for row in expansion.rows() if row.lacks_half_kernel}

    def functions():
        """Return what there is but ``data`` and ``numpy``, through which a script writes weights unseen.

        And without ``compile``: the compiler has to leave emulated half arithmetic alone.
        """
        refusing = refuse if setting.casts_weights else ()
        watched = ("data", "numpy", "compile", *refusing, *[name + "_" for name in refusing])
        owners = (torch, torch.Tensor, F)
        return [{name: each for name, each in vars(owner).items() if name not in watched} for owner in owners]

    before = functions()
    with session_of(setting):
        model, batch = make_network(setting), make_batch(setting)
        optimizer = sgd(model)
        initialize(setting, model, optimizer)
        train_step(model, optimizer, batch)
        assert functions() == before


# -- masters -----------------------------------------------------------------------------------------------------------


@settings_at(*MASTER_LEVELS)
def test_param_groups_hold_float32_masters_with_the_values_from_before(setting, session):
    model = make_network(setting)
    optimizer = sgd(model)
    originals = [param.detach().clone() for param in model.parameters()]
    initialize(setting, model, optimizer)
    masters = optimizer.param_groups[0]["params"]
    assert masters == list(amp.master_params(optimizer))
    assert all(m.dtype is setting.high and torch.equal(m.detach(), o) for m, o in zip(masters, originals))
    for master, param in zip(masters, model.parameters()):
        assert (master is param) == (param.dtype is setting.high)
        assert torch.equal(param.detach(), master.detach().to(param.dtype))
        assert master.requires_grad and master.is_leaf


@settings_at("O0", "O1", "O3", "O4")
def test_other_levels_have_no_masters(setting, session):
    model = make_network(setting)
    optimizer = sgd(model)
    initialize(setting, model, optimizer)
    assert all(master is param for master, param in zip(amp.master_params(optimizer), model.parameters()))


@settings_at(*MASTER_LEVELS)
def test_state_that_the_optimizer_has_is_recast_and_rekeyed_to_the_masters(setting, session):
    model, batch = make_network(setting), make_batch(setting)
    optimizer = torch.optim.Adam(model.parameters())
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    params = list(model.parameters())
    state = {id(p): optimizer.state[p] for p in params}
    state[id(params[0])]["exp_avg"] = state[id(params[0])]["exp_avg"].to(setting.low)
    expected = [optimizer.state[p]["exp_avg"].to(setting.high) for p in params]
    initialize(setting, model, optimizer)
    masters = list(amp.master_params(optimizer))
    assert set(map(id, optimizer.state)) == set(map(id, masters))
    for master, value in zip(masters, expected):
        assert optimizer.state[master]["exp_avg"].dtype is setting.high
        assert torch.equal(optimizer.state[master]["exp_avg"], value)
    train_step(model, optimizer, batch)


# -- state dicts of models ---------------------------------------------------------------------------------------------


@each_setting
def test_a_models_state_dict_is_float32(setting, session):
    model = make_network(setting)
    optimizer = sgd(model)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    initialize(setting, model, optimizer)
    found = model.state_dict()
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.dtype is expected[name].dtype
        kept = setting.has_masters or not setting.casts_weights or not value.is_floating_point()
        rounded = expected[name] if kept else expected[name].to(setting.low).to(setting.high)
        assert torch.equal(value, rounded)
