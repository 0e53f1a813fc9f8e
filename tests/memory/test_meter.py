"""Measured bytes against bytes counted by hand; measuring does not change the results of training."""

import copy
import io
import os
import pickle

import pytest
import torch
import torch.utils.checkpoint
from helpers import loops, networks
from helpers.networks import each_setting, session_of
from hypothesis import given, settings
from hypothesis import strategies as st

import ampcompat
from ampcompat.observers.memory.allocations import sizes_in
from ampcompat.observers.memory.meter import MemoryMeter, cuda_allocator_stats
from ampcompat.support.torch_compat import features, thread_context

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available"),  # torch 1.12's checkpoints
    pytest.mark.filterwarnings("ignore:Couldn't retrieve source code:UserWarning"),
    pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning"),
]
needs_saved_tensor_hooks = pytest.mark.skipif(
    not hasattr(getattr(torch.autograd, "graph", None), "saved_tensors_hooks"),
    reason="torch before 1.10 has no saved-tensor hooks",
)
needs_several_hooks = pytest.mark.skipif(
    not features.is_version_within(oldest="1.11"),
    reason="before 1.11 there is one pair of saved-tensor hooks",
)
needs_dispatch_modes = pytest.mark.skipif(
    not features.has_dispatch_modes(), reason="torch before 2.0 has no dispatch modes"
)


@pytest.fixture(autouse=True)
def no_hook_or_mode_is_left():
    yield
    assert thread_context.saved_tensor_hooks() is None
    modes = getattr(torch.utils, "_python_dispatch", None)
    if hasattr(modes, "_get_current_dispatch_mode_stack"):
        assert modes._get_current_dispatch_mode_stack() == []


def measured(step, models=(), optimizers=()):
    """Return the ``MemoryUsage`` of one call of ``step``."""
    meter = MemoryMeter()
    meter.track(models, optimizers)
    meter.start()
    try:
        step()
    finally:
        usage = meter.stop()
    return usage


def amp_step(model, optimizer):
    """Return a function that does one iteration of the small network."""
    batch = networks.make_batch()
    return lambda: networks.train_step(model, optimizer, batch)


# -- storages ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 6)), max_size=6))
@settings(max_examples=40, deadline=None)
def test_views_of_one_storage_count_once_and_whole(cuts):
    bases = [torch.zeros(12), torch.zeros(3, 4), torch.zeros(12, dtype=torch.float64)]
    views = [bases[which].reshape(-1)[start : start + size] for which, start, size in cuts]
    whole = {0: 48, 1: 48, 2: 96}
    nested = {"views": views, "again": [tuple(views)]}
    assert sum(sizes_in(nested).values()) == sum(whole[which] for which in {cut[0] for cut in cuts})


def test_sparse_tensors_count_indices_and_values():
    sparse = torch.eye(3).to_sparse()
    assert sum(sizes_in(sparse).values()) == 2 * 3 * 8 + 3 * 4


# -- kinds at every level ----------------------------------------------------------------------------------------------


class Counting(torch.nn.Module):
    """Replaces its buffers at each call, as batch norm of torch 1.6 does its count."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(50)])
        for i in range(50):
            self.register_buffer(f"count{i}", torch.zeros(1))

    def forward(self, x):
        for i in range(50):
            setattr(self, f"count{i}", torch.ones(1))
        return x * sum(self.weights)


def test_a_gradient_at_the_address_of_a_replaced_buffer_is_a_gradient():
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usage = measured(lambda: model(torch.ones(1)).sum().backward(), [model], [optimizer])
    assert usage.peak_by_kind.gradients == 50 * 4


@needs_saved_tensor_hooks
def test_activations_are_what_autograd_saves():
    model = torch.nn.Linear(4, 4)
    x = torch.ones(5, 4)

    def step():
        model(x).exp().sigmoid().sum().backward()

    # exp and sigmoid save their results; the batch and the weight are there anyway.
    assert measured(step, [model]).peak_by_kind.activations == 2 * 5 * 4 * 4


@needs_saved_tensor_hooks
def test_what_is_saved_twice_or_as_a_view_counts_once():
    weight = torch.ones(8, 4, requires_grad=True)

    def step():
        made = -weight
        (made * made[:4].repeat(2, 1) + made.t().t() * made).sum().backward()

    usage = measured(step)
    assert usage.peak_by_kind.activations == 2 * 8 * 4 * 4  # what was made, and its half repeated


@needs_dispatch_modes
def test_everything_made_in_a_step_is_in_one_kind_or_another():
    model = torch.nn.Linear(100, 100, bias=False)
    x = torch.ones(50, 100)

    def step():
        kept = model(x)
        unrelated = torch.zeros(300)
        kept.exp().sum().backward()
        del unrelated

    usage = measured(step, [model])
    # At the peak, with the weight's gradient just made: the first result (the second was saved until now), the gradient
    # that came to it, what is unrelated, the loss and its gradient.
    assert usage.at_peak.parameters == usage.at_peak.gradients == 40000
    assert usage.at_peak.activations == 0
    assert usage.at_peak.temporaries == 2 * 20000 + 1200 + 4 + 4
    assert usage.peak_by_kind.activations == 20000


@needs_dispatch_modes
def test_the_batch_and_what_came_before_the_forward_pass_are_not_counted():
    model = torch.nn.Linear(10, 1)

    def step():
        big = torch.zeros(1000, 1000)
        del big
        batch, target = torch.ones(500, 10), torch.ones(500, 1)
        torch.nn.functional.mse_loss(model(batch), target).backward()

    usage = measured(step, [model])
    assert usage.at_peak.total < 500 * 10 * 4


@needs_dispatch_modes
def test_casts_of_weights_are_not_counted_as_activations(backend):
    pair = networks.HALF
    with session_of(networks.Setting("O1", backend, pair)):
        first, second = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)
        model = torch.nn.Sequential(first, second)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        networks.amp.initialize(model, optimizer, verbosity=0)

        def step():
            loops.step(model(torch.ones(2, 64)).float().sum(), optimizer)

        usage = measured(step, [model], [optimizer])
    assert usage.peak_by_kind.casts >= 2 * 64 * 64 * 2
    assert usage.peak_by_kind.activations < 64 * 64 * 2


def test_params_of_an_optimizer_whose_model_is_not_tracked_are_counted():
    weight = torch.nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    assert measured(lambda: None, (), [optimizer]).peak_by_kind.parameters == 40


def test_allocator_statistics_are_summed_over_devices(monkeypatch):
    stats = {
        0: {"reserved_bytes.all.current": 100, "inactive_split_bytes.all.current": 10},
        1: {"reserved_bytes.all.current": 300, "inactive_split_bytes.all.current": 90},
    }
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {0: 50, 1: 70}.get)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", {0: 110, 1: 330}.get, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_stats", stats.get, raising=False)
    assert cuda_allocator_stats([0, 1]) == (120, 440, 0.25)
    del stats[1]["inactive_split_bytes.all.current"]
    assert cuda_allocator_stats([0, 1]) == (120, 440, None)


# -- results do not change ---------------------------------------------------------------------------------------------


@each_setting
def test_a_measured_step_gives_the_same_bits(setting):
    results = []
    for measures in (False, True):
        with session_of(setting):
            model = networks.make_network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
            networks.initialize(setting, model, optimizer)
            step = amp_step(model, optimizer)
            for _ in range(2):
                measured(step, [model], [optimizer]) if measures else step()
            results.append(networks.weights_of(model))
    assert networks.differing(*results) == []


def checkpointed(function, x, use_reentrant):
    kwargs = {} if use_reentrant is None else {"use_reentrant": use_reentrant}
    return torch.utils.checkpoint.checkpoint(function, x, **kwargs)


@pytest.mark.skipif(not features.is_version_within(oldest="1.11"), reason="this torch has one kind of checkpoint only")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_lowers_activations_and_keeps_its_gradients(use_reentrant):
    blocks = [torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)) for _ in range(4)]
    x = torch.ones(20, 8, requires_grad=True)
    activations, gradients = [], []
    for run in (lambda block, y: block(y), lambda block, y: checkpointed(block, y, use_reentrant)):

        def step():
            y = x
            for block in blocks:
                y = run(block, y)
            y.sum().backward()

        x.grad = None
        activations.append(measured(step, blocks).peak_by_kind.activations)
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    # Of each block the 64 columns between its layers; then one block's at a time, or none that is seen, and the inputs.
    assert activations[0] >= 4 * 20 * 64 * 4
    assert activations[1] < activations[0] / 2


@needs_several_hooks
@pytest.mark.parametrize("is_outside", [True, False])
def test_hooks_of_the_user_go_on_working(is_outside):
    if is_outside and not features.has_nested_saved_tensor_hooks():
        pytest.skip("this torch has no query for the saved-tensor hooks in force")
    packed, unpacked = [], []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(1) or tensor.clone(), lambda tensor: unpacked.append(1) or tensor
    )
    x = torch.ones(3, requires_grad=True)

    def step():
        x.exp().sum().backward()

    def hooked():
        with hooks:
            step()

    if is_outside:
        with hooks:
            measured(step)
    else:
        measured(hooked)
    assert packed == unpacked == [1]
    assert torch.equal(x.grad, x.detach().exp())


@needs_saved_tensor_hooks
def test_a_saved_tensor_that_is_modified_in_place_is_still_an_error():
    def step():
        y = torch.ones(3, requires_grad=True).exp()
        loss = y.sum()
        y.mul_(2.0)
        loss.backward()

    with pytest.raises(RuntimeError, match="modified in place"):
        measured(step)


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0 has no torch.func")
@pytest.mark.skipif(not features.has_nested_saved_tensor_hooks(), reason="this torch does not tell which hooks are on")
def test_torch_func_transforms_work_in_a_measured_step():
    found = []
    measured(lambda: found.append(torch.func.grad(lambda x: (x**2).sum())(torch.ones(2))))
    assert torch.equal(found[0], torch.full((2,), 2.0))


def test_a_model_is_copied_and_pickled_in_a_measured_step():
    model = torch.nn.Linear(2, 2)
    found = []

    def step():
        model(torch.ones(1, 2))
        found.append(copy.deepcopy(model))
        found.append(pickle.loads(pickle.dumps(model)))
        assert b"ampcompat" not in pickle.dumps(model)
        torch.save(model, io.BytesIO())

    measured(step, [model])
    assert not model._forward_pre_hooks
    assert all(torch.equal(each(torch.ones(1, 2)), model(torch.ones(1, 2))) for each in found)


@needs_several_hooks
def test_hooks_of_the_user_may_outlive_the_measured_step():
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    measured(hooks.__enter__)
    x = torch.ones(1000, requires_grad=True)
    x.exp().exp().sum().backward()
    hooks.__exit__(None, None, None)
    assert torch.equal(x.grad, x.detach().exp().exp() * x.detach().exp())


@needs_dispatch_modes
def test_a_forked_worker_of_a_data_loader_counts_nothing(monkeypatch):
    def step():
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            torch.zeros(1000)
        torch.zeros(10)

    assert measured(step).peak_by_kind.temporaries == 40


def test_a_step_that_raises_leaves_no_hook_or_mode():
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0)


@needs_saved_tensor_hooks
def test_what_autograd_has_released_is_no_longer_counted():
    from ampcompat.observers.memory.saved_tensors import SavedTensors

    with SavedTensors() as saved:
        result = torch.ones(6, requires_grad=True).exp()
        assert sum(saved.sizes().values()) == 24
        result.sum().backward()
        assert saved.sizes() == {}


@needs_saved_tensor_hooks
def test_a_graph_that_outlives_the_measured_step_can_be_used():
    found = []
    measured(lambda: found.append(torch.ones(3, requires_grad=True).exp()))
    found[0].sum().backward()


@needs_dispatch_modes
def test_memory_that_is_made_by_resizing_a_storage_is_counted_until_it_is_freed():
    """``fully_shard`` gathers weights into storages that are resized, and frees them in the same way."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gathered = torch.empty(1000)
    gathered.untyped_storage().resize_(0)
    held, resize = [], torch.UntypedStorage.resize_

    def step():
        output = model(torch.ones(2, 4))
        gathered.untyped_storage().resize_(4000)
        held.append(torch.ones(1000))
        gathered.untyped_storage().resize_(0)
        held.clear()
        output.sum().backward()
        optimizer.step()

    usage = ampcompat.memory_report(model, optimizer, step).usage
    assert 8000 <= usage.peak_by_kind.temporaries < 8500
    assert torch.UntypedStorage.resize_ is resize
