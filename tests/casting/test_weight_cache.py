"""A weight is cast once per iteration, and its half copy is never stale."""

import concurrent.futures
import copy
import gc
import weakref

import numpy
import pytest
import torch
import torch.nn.functional as F
from helpers.pairing import paired
from opened import PAIRS, SETTINGS, each_setting, opened

from ampcompat.engine.casting.thread_state import Switch
from ampcompat.engine.casting.weight_cache import WeightCache
from ampcompat.support import unversioned_writes
from ampcompat.support.torch_compat.features import is_version_within
from ampcompat.support.unversioned_writes import WrittenMemory

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


def make_linear(setting, features=(3, 4)):
    torch.manual_seed(0)
    return torch.nn.Linear(features[1], features[0]).to(PAIRS[setting[1]].high)


def make_input(setting):
    return torch.linspace(-1, 1, 8, dtype=PAIRS[setting[1]].high).reshape(2, 4)


def fresh(model, x, backend):
    """Return the model's output without cached copies."""
    backend.clear_cache()
    result = model(x)
    backend.clear_cache()
    return result


@each_setting
def test_weight_used_many_times_in_an_iteration_is_cast_once(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with CastCounter(model.weight.shape, PAIRS[setting[1]].low) as counter:
            loss = (model(x) + model(x) + F.linear(x, model.weight)).sum() + model(x).sum()
        assert counter.count == 1
        loss.backward()
        assert bool(torch.isfinite(model.weight.grad).all())
        backend.clear_cache()
        with CastCounter(model.weight.shape, PAIRS[setting[1]].low) as counter:
            model(x)
        assert counter.count == 1


@each_setting
def test_gradients_of_a_shared_weight_add_up(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting):
        model(x).sum().backward()
        once = model.weight.grad.clone()
        model.weight.grad = None
        (model(x).sum() + model(x).sum()).backward()
    assert torch.equal(model.weight.grad, 2 * once)


def step(model):
    model.weight.grad = torch.ones_like(model.weight)
    torch.optim.SGD([model.weight], lr=0.5).step()


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


def through_a_view_of_data(model):
    model.weight.data.view(-1)[0] = 7


CHANGES = [step, load, clamp, swap_data, copy_into_data, in_place, through_detach, replaced, through_a_view_of_data]


@paired("setting, change, grad", SETTINGS, [pytest.param(each, id=each.__name__) for each in CHANGES], [True, False])
def test_no_cast_outlives_a_change_of_the_weight(setting, change, grad):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        for _ in range(2):
            with torch.set_grad_enabled(grad):
                before = model(x)
            change(model)
            with torch.set_grad_enabled(grad):
                after = model(x)
                assert torch.equal(after, fresh(model, x, backend))
        del before


@each_setting
def test_alias_from_data_that_is_held_may_be_modified_at_any_time(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad():
        model(x)
        alias = model.weight.data
        for value in (1.0, 2.0, 3.0):
            model(x)
            alias.fill_(value)
            assert torch.equal(model(x), fresh(model, x, backend))


@each_setting
def test_view_of_an_alias_from_data_may_be_modified_at_any_time(setting):
    if is_version_within(newest="1.9"):
        pytest.skip("before torch 1.10 a tensor's Python object dies under its views: the alias cannot be followed")
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad():
        view = model.weight.data.view(-1)
        model(x)
        view.fill_(4.0)
        assert torch.equal(model(x), fresh(model, x, backend))


@each_setting
def test_weight_that_lives_in_a_flat_buffer_follows_the_buffer(setting):
    model, x = make_linear(setting), make_input(setting)
    flat = torch.zeros(12, dtype=model.weight.dtype)
    with opened(setting) as backend, torch.no_grad():
        model(x)
        model.weight.data = flat.view(3, 4)
        for value in (1.0, 2.0):
            model(x)
            flat.fill_(value)
            assert torch.equal(model(x), fresh(model, x, backend))


def numpy_of_detached(weight):
    return weight.detach().numpy()


def numpy_of_data(weight):
    return weight.data.numpy()


def view_of_numpy(weight):
    return weight.detach().numpy().reshape(-1)[2:]


def numpy_as_array(weight):
    return numpy.asarray(weight.detach())


def tensor_from_numpy(weight):
    return torch.from_numpy(weight.detach().numpy())


def numpy_of_a_frozen_weight(weight):
    return weight.requires_grad_(False).numpy()


def memory_view(weight):
    return numpy.frombuffer(memoryview(weight.detach().numpy().reshape(-1)), dtype=str(weight.dtype).split(".")[1])


VIEWS = [numpy_of_detached, numpy_of_data, view_of_numpy, numpy_as_array, tensor_from_numpy, numpy_of_a_frozen_weight]


@each_setting
@pytest.mark.parametrize("view", VIEWS + [memory_view], ids=lambda view: view.__name__)
def test_cast_is_fresh_after_a_write_through_numpy(setting, view):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad():
        array = view(model.weight)  # held before there is a copy, and while there are some
        for value in (1.0, 2.0):
            model(x)
            array[...] = value
            assert torch.equal(model(x), fresh(model, x, backend))
        del array
        model(x)
        view(model.weight)[...] = 3.0  # no reference is kept
        assert torch.equal(model(x), fresh(model, x, backend))
        model(x)
        assert len(backend._cache) + len(backend._rounded_cache) == 2


@each_setting
def test_arrays_of_other_tensors_do_not_keep_weights_from_being_cached(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting), torch.no_grad():
        kept = [model(x).to(model.weight.dtype).numpy() for _ in range(3)]
        with CastCounter(model.weight.shape, PAIRS[setting[1]].low) as counter:
            model(x)
        assert counter.count == 0 and len(kept) == 3 and len(unversioned_writes._living) == 3
        del kept
        assert torch.ones(1).data is not None  # reading it drops the aliases that have died
        assert len(unversioned_writes._living) <= 1


@each_setting
def test_numpy_of_a_tensor_is_the_method_of_torch_again_afterwards(setting):
    before = torch.Tensor.__dict__.get("numpy")
    with opened(setting):
        assert torch.ones(2).numpy().tolist() == [1.0, 1.0]
    assert torch.Tensor.__dict__.get("numpy") is before


@each_setting
def test_weight_is_cached_again_once_nobody_holds_its_alias(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad():
        alias = model.weight.data
        model(x)
        assert len(backend._cache) + len(backend._rounded_cache) == 1  # the bias
        del alias
        model(x)
        assert len(backend._cache) + len(backend._rounded_cache) == 2


@each_setting
@pytest.mark.skipif(not hasattr(torch.utils, "swap_tensors"), reason="this torch swaps no tensors")
def test_weights_can_be_swapped_and_are_cast_anew(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend, torch.no_grad():
        model(x)
        other = torch.nn.Parameter(torch.ones_like(model.weight))
        torch.utils.swap_tensors(model.weight, other)
        assert model.weight.eq(1).all()
        assert torch.equal(model(x), fresh(model, x, backend))


@each_setting
def test_moving_average_swapped_in_and_out_is_seen(setting):
    model, x = make_linear(setting), make_input(setting)
    average = torch.ones_like(model.weight)
    with opened(setting), torch.no_grad():
        trained = model(x)
        kept, model.weight.data = model.weight.data, average
        averaged = model(x)
        model.weight.data = kept
        assert not torch.equal(trained, averaged)
        assert torch.equal(model(x), trained)


@each_setting
def test_cast_made_without_gradients_is_not_used_where_they_are_wanted(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting):
        with torch.no_grad():
            model(x)
        model(x).sum().backward()
        assert model.weight.grad is not None
        if hasattr(torch, "inference_mode"):
            model.weight.grad = None
            with torch.inference_mode():
                model(x)
            model(x).sum().backward()
            assert model.weight.grad is not None


@each_setting
def test_a_pass_without_gradients_does_not_replace_the_cast_that_has_them(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting):
        with CastCounter(model.weight.shape, PAIRS[setting[1]].low) as counter:
            trained = model(x)
            with torch.no_grad():
                assert torch.equal(model(x), trained) and not model(x).requires_grad
            loss = (trained + model(x)).sum()
        assert counter.count == 1
        loss.backward()
        assert model.weight.grad is not None


@each_setting
def test_weight_that_starts_to_be_trained_gets_its_gradient(setting):
    model, x = make_linear(setting), make_input(setting)
    model.weight.requires_grad_(False)
    with opened(setting):
        model(x)
        model.weight.requires_grad_(True)
        model(x).sum().backward()
        assert model.weight.grad is not None
        model.weight.requires_grad_(False)
        assert not model(x).grad_fn.next_functions[-1][0] or not F.linear(x, model.weight).requires_grad


@each_setting
def test_weight_that_dies_leaves_the_cache(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        with torch.no_grad():
            model(x)
        assert len(backend._cache) + len(backend._rounded_cache) == 2
        weight = weakref.ref(model.weight)
        del model
        gc.collect()
        assert weight() is None
        assert len(backend._cache) + len(backend._rounded_cache) == 0


@each_setting
def test_parameter_made_in_inference_mode_is_not_cached(setting):
    if not hasattr(torch, "inference_mode"):
        pytest.skip(f"torch {torch.__version__} has no inference mode")
    with opened(setting) as backend, torch.inference_mode():
        model, x = make_linear(setting), make_input(setting)
        model(x)
        model.weight.fill_(2.0)
        assert torch.equal(model(x), fresh(model, x, backend))


@each_setting
def test_data_is_the_property_of_torch_again_afterwards(setting):
    before = torch.Tensor.__dict__.get("data"), torch.Tensor.data
    with opened(setting):
        w = torch.nn.Parameter(torch.ones(2))
        assert type(w.data) is torch.Tensor and not w.data.requires_grad and w.data.data_ptr() == w.data_ptr()
    assert (torch.Tensor.__dict__.get("data"), torch.Tensor.data) == before


@each_setting
def test_submodule_called_directly_sees_the_new_weight(setting):
    inner, x = make_linear(setting), make_input(setting)
    model = torch.nn.Sequential(inner, torch.nn.ReLU())
    with opened(setting), torch.no_grad():
        model(x)
        inner.weight.zero_()
        inner.bias.zero_()
        assert inner(x).abs().sum() == 0


def in_thread(function):
    """Return what the function returns in a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@each_setting
def test_clearing_in_one_thread_keeps_the_casts_that_another_has_made(setting):
    mine, theirs, x = make_linear(setting), make_linear(setting), make_input(setting)
    low = PAIRS[setting[1]].low
    with opened(setting) as backend:
        mine(x)
        in_thread(lambda: (theirs(x), backend.clear_cache()))
        with CastCounter(mine.weight.shape, low) as counter:
            mine(x)
        assert counter.count == 0
        in_thread(lambda: theirs(x))
        backend.clear_cache()
        with CastCounter(mine.weight.shape, low) as counter:
            theirs(x)
            assert counter.count == 0
            mine(x)
        assert counter.count == 1


@each_setting
def test_step_forgets_the_casts_of_its_weights_whoever_made_them(setting):
    stepped, other, x = make_linear(setting), make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        in_thread(lambda: (stepped(x), other(x)))
        backend.clear_cache(lambda: [stepped.weight])
        with CastCounter(other.weight.shape, PAIRS[setting[1]].low) as counter:
            other(x)
            assert counter.count == 0
            stepped(x)
        assert counter.count == 1


@each_setting
def test_casts_recomputed_by_another_thread_belong_to_the_one_that_it_does_it_for(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        in_thread(backend.bind_casts(lambda: model(x)))
        assert len(backend._cache) + len(backend._rounded_cache) == 2
        backend.clear_cache()
        assert len(backend._cache) + len(backend._rounded_cache) == 0


@each_setting
def test_thread_that_trained_a_weight_before_does_not_clear_its_casts_any_more(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting) as backend:
        model(x)
        backend.clear_cache()
        in_thread(lambda: model(x))
        backend.clear_cache()
        assert len(backend._cache) + len(backend._rounded_cache) == 2


@each_setting
def test_threads_share_the_casts_of_weights_that_they_share(setting):
    model, x = make_linear(setting), make_input(setting)
    with opened(setting):
        with CastCounter(model.weight.shape, PAIRS[setting[1]].low) as counter:
            model(x)
        outputs = [in_thread(lambda: model(x)) for _ in range(2)]
        assert counter.count == 1
        sum(out.sum() for out in outputs).backward()
    assert model.weight.grad is not None and torch.equal(outputs[0], outputs[1])


@each_setting
def test_weights_that_come_and_go_in_several_threads_break_nothing(setting):
    x = make_input(setting)
    with opened(setting) as backend, concurrent.futures.ThreadPoolExecutor(4) as pool:

        def work(index):
            for _ in range(10):
                model = make_linear(setting)
                array = model.weight.detach().numpy()
                model(x).sum().backward()
                backend.clear_cache()
                array += 1
                model.weight.data = model.weight.data.clone()
                assert model(x).shape == (2, 3)
            return index

        assert list(pool.map(work, range(8))) == list(range(8))
        backend._cache.forget_all()
        assert len(backend._cache) == 0


@each_setting
def test_change_by_another_thread_while_a_cast_is_made_is_seen(setting):
    low = PAIRS[setting[1]].low
    weight = torch.nn.Parameter(torch.ones(2, 2, dtype=PAIRS[setting[1]].high))

    def make(weight):
        cast = weight.to(low)
        if len(changes) < 1:
            changes.append(in_thread(lambda: change_in_place(weight)))
        return cast

    def change_in_place(weight):
        with torch.no_grad():
            return weight.zero_()

    changes = []
    cache = WeightCache(make, WrittenMemory(), Switch().local)
    cache.cast(weight)
    assert cache.cast(weight).abs().sum() == 0


@each_setting
def test_a_captured_graph_gets_casts_of_its_own(setting, monkeypatch):
    """A CUDA graph that read a copy made before it would never see a changed weight."""
    model, x = make_linear(setting), make_input(setting)
    low = PAIRS[setting[1]].low
    with opened(setting), torch.no_grad():
        model(x)
        with CastCounter(model.weight.shape, low) as counter:
            model(x)
        assert counter.count == 0
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "is_cuda", True, raising=False)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True, raising=False)
            with CastCounter(model.weight.shape, low) as counter:
                model(x)
                model(x)
        assert counter.count == 2
        with CastCounter(model.weight.shape, low) as counter:
            model(x)
        assert counter.count == 0
