"""A weight is cast once per forward pass, and its half copy is never stale."""

import concurrent.futures
import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from helpers.pairing import paired
from helpers.threads import in_thread
from opened import SETTINGS, each_setting, forward, opened

from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.support.torch_compat import features

try:
    import torch._dynamo  # noqa: F401  A dispatch mode imports it, and its import changes torch.
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None


class CastCounter(TorchDispatchMode or object):
    """Counts casts of tensors of one shape to the low dtype."""

    def __init__(self, shape, low):
        if TorchDispatchMode is None:
            pytest.skip(f"torch {torch.__version__} has no dispatch mode to count casts with")
        super().__init__()
        self.shape, self.low, self.count = shape, low, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if "_to_copy" in str(function) and result.dtype is self.low and result.shape == self.shape:
            self.count += 1
        return result


def counting(model, setting):
    return CastCounter(model.weight.shape, setting.low)


def make_linear(setting, features=(3, 4)):
    torch.manual_seed(0)
    return torch.nn.Linear(features[1], features[0]).to(setting.high)


def make_input(setting):
    return torch.linspace(-1, 1, 8, dtype=setting.high).reshape(2, 4)


# -- one cast per forward pass -----------------------------------------------------------------------------------------


@each_setting
def test_weight_used_many_times_in_a_forward_pass_is_cast_once(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        for _ in range(2):
            with counting(model, setting) as counter, forward(backend):
                loss = (model(x) + model(x) + F.linear(x, model.weight)).sum() + model(x).sum()
            assert counter.count == 1
        loss.backward()
        assert bool(torch.isfinite(model.weight.grad).all())


@each_setting
def test_weight_is_cast_at_each_use_outside_of_forward(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting), counting(model, setting) as counter:
        model(x)
        model(x)
    assert counter.count == 2


@each_setting
def test_forward_within_another_shares_its_copies(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, counting(model, setting) as counter, forward(backend):
        model(x)
        with forward(backend):
            model(x)
        model(x)
    assert counter.count == 1


@each_setting
def test_recomputed_part_of_a_forward_pass_casts_once_too(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with forward(backend):
            model(x)
            again = backend.bind_casts(lambda: (model(x), model(x)))
        for _ in range(2):  # the copies of the pass are gone, and those of the first recomputation too
            with counting(model, setting) as counter:
                again()
            assert counter.count == 1


@each_setting
def test_gradients_of_a_shared_weight_add_up(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with forward(backend):
            loss = model(x).sum()
        loss.backward()
        once = model.weight.grad.clone()
        model.weight.grad = None
        with forward(backend):
            loss = model(x).sum() + model(x).sum()
        loss.backward()
    assert torch.equal(model.weight.grad, 2 * once)


# -- never stale -------------------------------------------------------------------------------------------------------


def step(model):
    model.weight.grad = torch.ones_like(model.weight)
    torch.optim.SGD([model.weight], lr=0.5).step()


def fused_step(model):
    model.weight.grad = torch.ones_like(model.weight)
    optimizer = torch.optim.Adam([model.weight], lr=0.5, **FUSED)
    optimizer.step()


def load(model):
    model.load_state_dict({name: value + 1 for name, value in copy.deepcopy(model.state_dict()).items()})


def clamp(model):
    model.weight.data.clamp_(-0.01, 0.01)


def swap_data(model):
    model.weight.data = torch.zeros_like(model.weight)


def copy_into_data(model):
    model.weight.data.copy_(torch.zeros_like(model.weight))


def in_place(model):
    with torch.no_grad():
        model.weight.mul_(3)


def through_detach(model):
    model.weight.detach().mul_(3)


def replaced(model):
    model.weight = torch.nn.Parameter(torch.zeros_like(model.weight))


def through_numpy(model):
    model.weight.detach().numpy()[...] = 7.0


def through_dlpack(model):
    dlpack = pytest.importorskip("torch.utils.dlpack", reason="this torch has no DLPack")
    dlpack.from_dlpack(dlpack.to_dlpack(model.weight.detach())).fill_(5.0)


#: Writes that change the version counter or the memory, and those that change neither.
SEEN = [step, load, swap_data, in_place, through_detach, replaced]
UNSEEN = [fused_step, clamp, copy_into_data, through_numpy, through_dlpack]
#: torch before 2.4 or so has no fused Adam for the CPU.
FUSED = {"fused": True} if features.is_version_within(oldest="2.4") else {}


@paired(
    "setting, change, grad", SETTINGS, [pytest.param(each, id=each.__name__) for each in SEEN + UNSEEN], [True, False]
)
def test_no_copy_outlives_its_forward_pass(setting, change, grad):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.set_grad_enabled(grad):
        with forward(backend):
            before = model(x)
        with torch.enable_grad():
            change(model)
        with forward(backend):
            after = model(x)
        assert torch.equal(after, model(x)) and not torch.equal(after, before)


def changes_version_or_memory(change):
    """Return whether the installed torch does: that of 1.3 steps and loads through ``.data``."""
    model = torch.nn.Linear(4, 3)
    before = model.weight, model.weight._version, model.weight.data_ptr()
    change(model)
    return model.weight is not before[0] or (model.weight._version, model.weight.data_ptr()) != before[1:]


@paired("setting, change, grad", SETTINGS, [pytest.param(each, id=each.__name__) for each in SEEN], [True, False])
@pytest.mark.parametrize("half_math", ["on", "off"])
def test_change_within_a_forward_pass_is_seen(setting, change, grad, half_math, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, half_math)  # off: autocast itself casts
    if not changes_version_or_memory(change):
        pytest.skip("this torch changes neither the version counter nor the memory here")
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, forward(backend), torch.set_grad_enabled(grad):
        before = model(x)
        with torch.enable_grad():
            change(model)
        after = model(x)
        with torch.no_grad():
            expected = F.linear(x, model.weight.clone(), model.bias)
        assert torch.equal(after, expected) and not torch.equal(after, before)


@each_setting
def test_step_within_a_forward_pass_is_seen_whatever_kernel_makes_it(setting):
    model, x = make_linear(setting), make_input(setting)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, **FUSED)
    with opened(setting) as backend, forward(backend):
        before = model(x)
        before.sum().backward()
        optimizer.step()
        after = model(x)
        with torch.no_grad():
            assert torch.equal(after, F.linear(x, model.weight.clone(), model.bias))
        assert not torch.equal(after, before)


@each_setting
def test_copies_are_dropped_when_forward_raises(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with pytest.raises(ZeroDivisionError):
            with forward(backend):
                model(x)
                raise ZeroDivisionError
        clamp(model)
        with forward(backend):
            after = model(x)
        assert torch.equal(after, model(x))


@each_setting
def test_weight_that_dies_leaves_nothing_behind(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with forward(backend), torch.no_grad():
            model(x)
        weight = weakref.ref(model.weight)
        del model
        gc.collect()
        assert weight() is None


# -- with gradients and without ----------------------------------------------------------------------------------------


def without_gradients(model, x):
    with torch.no_grad():
        model(x)


def in_inference_mode(model, x):
    with torch.inference_mode():
        model(x)


class Custom(torch.autograd.Function):
    """Its ``forward`` runs without gradients, which C++ turns off."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        return None, None, None


def in_a_custom_function(model, x):
    Custom.apply(x, model.weight, model.bias)


TEACHERS = [without_gradients, in_a_custom_function] + [in_inference_mode] * hasattr(torch, "inference_mode")


@each_setting
@pytest.mark.parametrize("teacher", TEACHERS, ids=lambda teacher: teacher.__name__)
@pytest.mark.parametrize("half_math", ["on", "off"])
def test_copy_made_without_gradients_is_not_used_where_they_are_wanted(setting, teacher, half_math, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, half_math)
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with forward(backend):
            teacher(model, x)
            out = model(x)
        out.sum().backward()
        assert model.weight.grad is not None and model.weight.grad.abs().sum() > 0


@each_setting
def test_a_pass_without_gradients_does_not_replace_the_copy_that_has_them(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with forward(backend):
            trained = model(x)
            with torch.no_grad():
                assert torch.equal(model(x), trained) and not model(x).requires_grad
            loss = (trained + model(x)).sum()
        loss.backward()
        assert model.weight.grad is not None


@each_setting
def test_weight_that_starts_to_be_trained_gets_its_gradient(setting):
    model, x = make_linear(setting), make_input(setting)
    model.weight.requires_grad_(False)
    with opened(setting) as backend:
        with forward(backend):
            model(x)
            model.weight.requires_grad_(True)
            out = model(x)
        out.sum().backward()
        assert model.weight.grad is not None


@each_setting
def test_parameter_made_in_inference_mode_is_cast_at_each_use(setting):
    if not hasattr(torch, "inference_mode"):
        pytest.skip(f"torch {torch.__version__} has no inference mode")
    with opened(setting) as backend, torch.inference_mode(), forward(backend):
        model, x = make_linear(setting), make_input(setting)
        before = model(x)
        model.weight.fill_(2.0)
        assert not torch.equal(model(x), before)


# -- threads and graphs ------------------------------------------------------------------------------------------------


@each_setting
def test_each_thread_keeps_copies_of_its_own_pass(setting):
    model, x = make_linear(setting), make_input(setting)

    def passed():
        with forward(backend):
            return model(x) + model(x)

    with opened(setting) as backend:
        with forward(backend):
            alone = model(x) + model(x)
            outputs = [in_thread(passed) for _ in range(2)]
        sum(out.sum() for out in outputs).backward()
    assert model.weight.grad is not None and all(torch.equal(out, alone) for out in outputs)


@each_setting
def test_weights_that_come_and_go_in_several_threads_break_nothing(setting):
    x = make_input(setting)

    def work(index):
        for _ in range(10):
            model = make_linear(setting)
            with forward(backend):
                out = model(x)
            out.sum().backward()
            model.weight.detach().numpy()[...] += 1
            model.weight.data = model.weight.data.clone()
            with forward(backend):
                out = model(x)
            assert torch.equal(out, model(x))
        return index

    with opened(setting) as backend, concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


@each_setting
def test_a_captured_graph_gets_casts_of_its_own(setting, monkeypatch):
    """A CUDA graph that read a copy made before it would never see a changed weight."""
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad(), forward(backend):
        model(x)
        with counting(model, setting) as counter:
            model(x)
        assert counter.count == 0
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "is_cuda", True, raising=False)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True, raising=False)
            with counting(model, setting) as counter:
                model(x)
                model(x)
        assert counter.count == 2
