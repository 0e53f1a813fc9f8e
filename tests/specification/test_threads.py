"""Models that train in several threads of one session give what they give one after the other."""

import copy
import threading
import weakref

import pytest
import torch
from helpers import loops
from helpers.networks import (
    INPUT,
    Product,
    each_setting,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
)
from helpers.precision import HIGH
from helpers.threads import in_threads

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import autocast_flags
from ampcompat.engine.masters import grad_of_half_params
from ampcompat.engine.models import forward_conversion as forwards
from ampcompat.engine.optimizers import gradient_scale
from ampcompat.opt_levels import OPT_LEVELS
from ampcompat.support import tensor_lists
from ampcompat.support.live_objects import WeakList, live_items
from ampcompat.support.patching import PatchStack


def trained_by_two(levels, backend, at_once):
    """Train two models in one session, each in its thread or one after the other; return their losses and masters."""
    x, classes = make_batch()
    pairs, results = [], [None, None]

    def train(index):
        model, optimizer = pairs[index]
        losses = []
        for step in range(20):
            loss = torch.nn.functional.cross_entropy(model(x.to(HIGH)), classes)
            losses.append(loss.item())
            optimizer.zero_grad()
            loops.step(loss * float("inf") if step == 10 else loss, optimizer)
        results[index] = losses, [param.detach().clone() for param in amp.master_params(optimizer)]

    with ampcompat.session(backend=backend, verbosity=0):
        for seed, level in enumerate(levels):
            model = make_network(seed=seed).to(HIGH)
            params = model.parameters()
            optimizer = torch.optim.Adam(params, lr=1e-3, eps=1e-4) if seed else torch.optim.SGD(params, lr=0.05)
            pairs.append(amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic"))
        threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
    return results


@pytest.mark.parametrize("levels", [(level, level) for level in OPT_LEVELS] + [("O1", "O2"), ("O3", "O4")], ids=str)
def test_two_threads_train_two_models_to_the_last_bit(levels, backend):
    expected = trained_by_two(levels, backend, at_once=False)
    for (losses, masters), (losses_alone, masters_alone) in zip(trained_by_two(levels, backend, True), expected):
        assert losses == losses_alone and all(map(torch.equal, masters, masters_alone))


def trained(setting, is_evaluated):
    """Return the masters of a model after some steps, in which another thread may evaluate it."""
    model, batch, is_trained, errors = make_network(setting).eval(), make_batch(setting), threading.Event(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def evaluate():
        try:
            with torch.no_grad():
                while not is_trained.is_set():
                    assert model(batch[0]).dtype is (setting.low if setting.casts_functions else setting.high)
        except Exception as error:
            errors.append(error)

    with session_of(setting):
        initialize(setting, model, optimizer, loss_scale="dynamic")
        thread = threading.Thread(target=evaluate)
        if is_evaluated:
            thread.start()
        try:
            for _ in range(20):
                train_step(model, optimizer, batch)
        finally:
            is_trained.set()
        if is_evaluated:
            thread.join()
        return errors, [param.detach().clone() for param in amp.master_params(optimizer)]


@each_setting
def test_a_model_is_evaluated_in_a_thread_while_another_trains_it(setting):
    _, expected = trained(setting, is_evaluated=False)
    errors, found = trained(setting, is_evaluated=True)
    assert errors == [] and all(map(torch.equal, found, expected))


@each_setting
def test_a_session_is_closed_while_another_thread_is_in_forward(setting):
    is_inside, may_go_on, left_on = threading.Event(), threading.Event(), []

    class Waiting(torch.nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            is_inside.set()
            assert may_go_on.wait(60)
            return output

    def forward():
        model(torch.ones(2, 4, dtype=setting.high))
        left_on.append(autocast_flags.region_dtype("cpu"))

    model = Waiting(4, 3).to(setting.high)
    thread = threading.Thread(target=forward)
    with session_of(setting):
        initialize(setting, model)
        thread.start()
        assert is_inside.wait(60)
    may_go_on.set()
    thread.join(60)
    assert not thread.is_alive() and left_on == [None]
    assert model.weight.dtype is setting.high


@settings_at("O0", "O1", "O2")
def test_a_pass_reads_no_gradient_of_an_optimizer_that_another_thread_uses(setting, session):
    # Its own thread may be writing it, without the GIL.
    def backward(model, optimizer):
        loops.backward(model(INPUT.to(setting.high)).sum(), optimizer)

    read, original = [], torch.Tensor.grad

    def get(param, *owner):
        read.append(id(param))
        return original.__get__(param, type(param))

    models = [Product(1.0).to(setting.high) for _ in range(2)]
    mine, other = optimizers = [torch.optim.SGD(model.parameters(), lr=0.25) for model in models]
    initialize(setting, models, optimizers, loss_scale=128.0)
    thread = threading.Thread(target=backward, args=(models[1], other))  # which trains the other model
    thread.start()
    thread.join(60)
    theirs = [id(param) for param in list(models[1].parameters()) + list(amp.master_params(other))]
    with PatchStack() as patches:
        patches.set(torch.Tensor, "grad", property(get, original.__set__, original.__delete__))
        for module in (gradient_scale, grad_of_half_params, tensor_lists):
            patches.set(module, "stored_gradient", get)
        backward(models[0], mine)
    assert read and not set(read) & set(theirs)


class Echo(torch.nn.Module):
    def forward(self, x):
        return x


def test_models_of_one_class_come_and_go_in_several_threads():
    x = torch.ones(1)

    def come_and_go():
        for _ in range(300):
            model, patches = Echo(), PatchStack()
            forwards.mark(model, forwards.ForwardConversion(Echo, input_dtype=torch.float64), patches)
            assert model(x).dtype is torch.float64

    assert in_threads(come_and_go) == []
    assert Echo()(x) is x


def test_a_weak_list_is_read_while_another_thread_changes_it():
    items = WeakList()

    def change_and_read():
        for _ in range(300):
            mine = Echo()
            items.add(mine)
            assert any(item is mine for item in items)
            items.discard(mine)
            assert not any(item is mine for item in items)

    assert in_threads(change_and_read) == []
    assert not items


def test_the_items_of_a_weak_dictionary_are_listed_while_another_thread_changes_it():
    items, others = weakref.WeakKeyDictionary(), [Echo() for _ in range(100)]
    items.update(dict.fromkeys(others, 1))

    def change_and_read():
        for _ in range(300):
            mine = Echo()
            items[mine] = 2
            assert [value for key, value in live_items(items) if key is mine] == [2]

    assert in_threads(change_and_read) == []
    assert live_items(items) == [(each, 1) for each in others]


def test_models_of_one_session_come_and_go_in_several_threads():
    first, others_end = threading.Lock(), threading.Event()

    def come_and_go():
        if first.acquire(blocking=False):
            for _ in range(50):
                amp.initialize(Echo(), opt_level="O1")
            others_end.set()
        while not others_end.is_set():
            assert set(kept) <= set(session.models)
            with amp.scale_loss(torch.ones(1), []):
                pass

    with ampcompat.session(verbosity=0) as session:
        kept = amp.initialize([Echo() for _ in range(200)], opt_level="O1")
        assert in_threads(come_and_go) == []


@each_setting
def test_threads_may_initialize_at_the_same_time(setting):
    original, batch, found = make_network(setting), make_batch(setting), []

    def train():
        model = copy.deepcopy(original)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        initialize(setting, model, optimizer)
        train_step(model, optimizer, batch)
        found.append([param.detach().clone() for param in amp.master_params(optimizer)])

    for _ in range(5):
        with session_of(setting):
            assert in_threads(train) == []
    assert len(found) == 15
    for params in found[1:]:
        assert all(map(torch.equal, found[0], params))
