"""FP16_Optimizer as before 2019: its loop, its overflows, its checkpoints and those of subclasses."""

import copy

import pytest
import torch
from helpers import precision
from helpers.half_kernels import dtype_params

from ampcompat.apex.contrib import optimizers
from ampcompat.apex.contrib.optimizers import FP16_Optimizer

each_half = pytest.mark.parametrize("dtype", dtype_params(torch.float16, torch.bfloat16))


def prepared(dtype, dynamic=True, wrapper=FP16_Optimizer, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(dtype)
    inner = optimizers.FusedAdam(model.parameters(), lr=0.05, bias_correction=False, max_grad_norm=1.0)
    scale = {"dynamic_loss_scale": True} if dynamic else {"static_loss_scale": 128.0}
    return model, wrapper(inner, verbose=False, **dict(scale, **options))


def train(model, optimizer, steps, passes=2, factor=1.0):
    dtype = next(model.parameters()).dtype
    losses = []
    for step in range(steps):
        for part in range(passes):
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(10 * step + part)).to(dtype)
            loss = (model(x).float().squeeze(1) - x[:, 0].float()).pow(2).mean() * factor / passes
            optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@each_half
def test_the_loop_of_2018_trains(dtype):
    model, optimizer = prepared(dtype)
    assert optimizer.cur_scale == 2.0**16
    losses = train(model, optimizer, 40)
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    for params, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups):
        assert {master.dtype for master in masters} == {precision.HIGH}
        assert all(torch.equal(param.detach(), master.detach().to(dtype)) for param, master in zip(params, masters))


@each_half
@pytest.mark.parametrize("dynamic", [True, False])
def test_an_overflow_skips_the_step_under_any_scale(dtype, dynamic):
    model, optimizer = prepared(dtype, dynamic)
    before, scale = copy.deepcopy(model.state_dict()), optimizer.cur_scale
    train(model, optimizer, 1, factor=float("inf"))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.overflow and optimizer.cur_scale == (scale / 2 if dynamic else scale)
    optimizer.cur_scale = 64.0
    train(model, optimizer, 1)
    assert not optimizer.overflow and optimizer.loss_scale == 64.0


@each_half
def test_a_resumed_run_equals_one_that_went_on(dtype):
    model, optimizer = prepared(dtype)
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    resumed, other = prepared(dtype)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(model, optimizer, 3)
    train(resumed, other, 3)
    assert all(torch.equal(one, clone) for one, clone in zip(model.parameters(), resumed.parameters()))


def as_of_2018(optimizer, flat):
    """Return its checkpoint in the layouts that Apex had then: a list of masters per group, or one vector."""
    inner = copy.deepcopy(optimizer.optimizer.state_dict())
    masters = [[param.detach().clone() for param in group] for group in optimizer.fp32_groups]
    saved = {"dynamic_loss_scale": True, "cur_scale": 512.0, "cur_iter": 9, "last_overflow_iter": 3}
    saved.update(scale_factor=2, scale_window=1000)
    if not flat:
        return dict(saved, optimizer_state_dict=inner, fp32_groups=masters)
    (group,) = inner["param_groups"]
    names = [name for name, value in inner["state"][group["params"][0]].items() if isinstance(value, torch.Tensor)]
    state = {name: torch.cat([inner["state"][key][name].reshape(-1) for key in group["params"]]) for name in names}
    inner = {"state": {0: dict(state, step=group["step"])}, "param_groups": [dict(group, params=[0])]}
    vectors = [torch.cat([master.reshape(-1) for master in each]) for each in masters]
    return dict(saved, optimizer_state_dict=inner, fp32_groups_flat=vectors)


@each_half
@pytest.mark.parametrize("flat", [False, True], ids=["lists", "one vector"])
def test_checkpoints_of_that_time_load(dtype, flat):
    model, optimizer = prepared(dtype)
    train(model, optimizer, 3)
    saved = as_of_2018(optimizer, flat)
    resumed, other = prepared(dtype)
    other.load_state_dict(saved)
    assert other.cur_scale == 512.0 and other.state_dict()["loss_scaler"]["unskipped"] == 5
    optimizer.cur_scale = 512.0
    train(model, optimizer, 2)
    train(resumed, other, 2)
    assert all(torch.equal(one, clone) for one, clone in zip(model.parameters(), resumed.parameters()))


@each_half
def test_checkpoints_of_other_params_are_refused(dtype):
    saved = as_of_2018(prepared(dtype)[1], flat=False)
    saved["fp32_groups"][0].pop()
    with pytest.raises(RuntimeError, match="different shapes"):
        prepared(dtype)[1].load_state_dict(saved)


class SavesItself(FP16_Optimizer):
    """A subclass with a checkpoint of its own, of Apex's attributes."""

    names = ("cur_iter", "cur_scale", "last_overflow_iter", "scale_factor", "scale_window")

    def state_dict(self):
        saved = {name: getattr(self, name) for name in self.names}
        return dict(saved, inner=self.optimizer.state_dict(), vectors=self.fp32_groups_flat)

    def load_state_dict(self, saved):
        for name in self.names:
            setattr(self, name, saved[name])
        self.optimizer.load_state_dict(saved["inner"])
        for vector, value in zip(self.fp32_groups_flat, saved["vectors"]):
            vector.data.copy_(value)


@each_half
def test_subclasses_save_and_load_the_scale_and_the_masters_by_their_names_in_apex(dtype):
    def new():
        return prepared(dtype, wrapper=SavesItself, dynamic_loss_args={"init_scale": 256.0, "scale_window": 4})

    model, optimizer = new()
    train(model, optimizer, 1, factor=float("inf"))
    train(model, optimizer, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    numbers = {name: saved[1][name] for name in SavesItself.names}
    assert numbers == dict(cur_iter=3, cur_scale=128.0, last_overflow_iter=0, scale_factor=2.0, scale_window=4)
    resumed, other = new()
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(model, optimizer, 3)
    train(resumed, other, 3)
    assert all(torch.equal(one, clone) for one, clone in zip(model.parameters(), resumed.parameters()))
    assert optimizer.cur_scale == other.cur_scale == 256.0


@each_half
@pytest.mark.parametrize("name", ["fp32_groups", "fp16_groups"])
def test_the_vectors_of_masters_and_of_half_params_share_their_memory(dtype, name):
    _, optimizer = prepared(dtype)
    (params,) = getattr(optimizer, name)
    before = torch.cat([param.detach().reshape(-1) for param in params])
    (vector,) = getattr(optimizer, name + "_flat")
    assert vector.dtype is params[0].dtype and torch.equal(vector, before)
    assert getattr(optimizer, name + "_flat")[0] is vector
    vector.fill_(3.0)
    assert all(bool((param == 3.0).all()) for param in params)
    params[0].data = torch.zeros_like(params[0])
    assert bool((getattr(optimizer, name + "_flat")[0][: params[0].numel()] == 0.0).all())


@each_half
def test_settings_of_a_dynamic_scale_can_be_changed(dtype):
    model, optimizer = prepared(dtype)
    optimizer.cur_scale, optimizer.scale_factor, optimizer.scale_window = 64.0, 4.0, 2
    train(model, optimizer, 1, factor=float("inf"))
    assert optimizer.cur_scale == 16.0 and optimizer.last_overflow_iter == 0
    train(model, optimizer, 2)
    assert optimizer.cur_scale == 64.0


def test_closures_are_those_of_the_present_one():
    with pytest.raises(RuntimeError, match="apex.fp16_utils"):
        FP16_Optimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)).step(lambda: None)


class OwnStep(FP16_Optimizer):
    """With a step of its own, as in Snorkel MeTaL: params may have no gradient."""

    def step(self, closure=None):
        """Step on one vector of gradients per group."""
        grads = [[p.new_zeros(p.shape) if p.grad is None else p.grad for p in group] for group in self.fp16_groups]
        flat = [torch.cat([grad.reshape(-1) for grad in group]) for group in grads]
        norms = [self._compute_grad_norm(each) for each in flat]
        if -1 in norms:
            self._update_scale(True)
            return
        self.optimizer.step(
            grads=[[each] for each in flat],
            output_params=[[each] for each in self.fp16_groups_flat],
            scale=self.cur_scale,
            grad_norms=norms,
        )
        self._update_scale(False)


@each_half
def test_a_subclass_with_a_step_of_its_own_trains_as_its_base_does(dtype):
    results = []
    for wrapper in (FP16_Optimizer, OwnStep):
        model, optimizer = prepared(dtype, wrapper=wrapper)
        losses = (
            train(model, optimizer, 3) + train(model, optimizer, 1, factor=float("inf")) + train(model, optimizer, 3)
        )
        results.append((str(losses), optimizer.cur_scale, optimizer.cur_iter, optimizer.last_overflow_iter))
    assert results[0] == results[1] and results[0][1:] == (2.0**15, 7, 3)
