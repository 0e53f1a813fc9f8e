"""Specification 7.3: copies, pickles and replicas of an initialized model work, each with its own weights."""

import copy
import functools
import gc
import inspect
import pickle

import pytest
import torch
from helpers.copies import pickled, saved_and_loaded
from helpers.networks import (
    begin,
    each_setting,
    each_setting_and_stored,
    holds_nonzero,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
)

from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.support.torch_compat import features

#: The warnings of old torch when it saves a model or pickles a tensor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Couldn't retrieve source code:UserWarning"),
    pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning"),
]


class Named(torch.nn.Module):
    """A model with a signature worth reading; at module level, for pickle."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, inputs, *, scale: float = 1.0, labels=None):
        return self.layer(inputs) * scale


class Strict(Named):
    """A model that takes no attribute which it has not declared, and gives none up."""

    def __setattr__(self, name, value):
        if name not in ("layer", "training") and not name.startswith("_parameter"):
            if name not in dir(torch.nn.Module()):
                raise AttributeError(f"Strict has no attribute {name!r}")
        super().__setattr__(name, value)

    def __delattr__(self, name):
        raise AttributeError(f"Strict keeps {name!r}")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def replicate(module):
    """Return a replica as torch.nn.parallel.replicate makes them."""
    if hasattr(module, "_replicate_for_data_parallel"):
        return module._replicate_for_data_parallel()
    replica = module.__new__(type(module))  # torch before 1.4 does it in place
    replica.__dict__ = module.__dict__.copy()
    for kind in ("_parameters", "_buffers", "_modules"):
        replica.__dict__[kind] = replica.__dict__[kind].copy()
    return replica


copies = pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved_and_loaded])


@each_setting
@copies
def test_a_copy_runs_its_own_weights(setting, duplicate, session):
    model, (x, _) = Named().to(setting.high), make_batch(setting)
    initialize(setting, model, sgd(model))
    twin = duplicate(model)
    assert type(twin) is type(model) and isinstance(twin, Named)
    assert torch.equal(twin(x), model(x)) and twin(x).dtype is model(x).dtype
    expected = model(x)
    with torch.no_grad():
        for param in twin.parameters():
            param.zero_()
    assert not holds_nonzero(twin(x))
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(1.0)
    assert not holds_nonzero(twin(x))


@each_setting
@pytest.mark.parametrize("has_own_forward", [False, True])
def test_a_model_that_refuses_attributes_trains_and_is_left_as_it_was(setting, has_own_forward):
    model, (x, target) = Strict().to(setting.high), make_batch(setting)
    if has_own_forward:
        vars(model)["forward"] = functools.partial(Named.forward, model)
    before = dict(vars(model))
    with session_of(setting):
        optimizer = sgd(model)
        initialize(setting, model, optimizer, loss_scale=8.0)
        assert train_step(model, optimizer, (x, target)) is not None
        for duplicate in (copy.deepcopy, saved_and_loaded) if not has_own_forward else ():
            twin = duplicate(model)
            assert torch.equal(twin(x), model(x)) and twin(x).dtype is model(x).dtype
    assert {name for name in vars(model)} == set(before) and vars(model).get("forward") is before.get("forward")
    assert model(x).dtype is setting.high


@settings_at("O2", "O3", "O5")
@copies
def test_a_copy_adds_up_in_float32_on_a_cpu_within_its_session_and_after_it(setting, duplicate, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "on")
    if not features.has_function_modes():
        pytest.skip("half is emulated in cast models by function modes, which this torch does not have")
    with session_of(setting):
        model = torch.nn.Embedding(2, 1)
        initialize(setting, model)
        twin = duplicate(duplicate(model))
        twin(torch.zeros(4096, dtype=torch.long)).sum().backward()
    assert twin.weight.grad[0].item() == 4096.0
    twin(torch.zeros(4096, dtype=torch.long)).sum().backward()
    assert twin.weight.grad[0].item() == 8192.0


@each_setting
@copies
def test_a_copy_has_a_float32_state_dict_that_loads(setting, duplicate, session):
    (model, optimizer), batch = begin(setting, 0.5), make_batch(setting)
    train_step(model, optimizer, batch)
    twin = duplicate(model)
    assert all(not v.is_floating_point() or v.dtype is setting.high for v in twin.state_dict().values())
    masters = [param.detach().clone() for param in amp.master_params(optimizer)]
    twin.load_state_dict({name: torch.zeros_like(value) for name, value in twin.state_dict().items()})
    assert all(torch.equal(a, b.detach()) for a, b in zip(masters, amp.master_params(optimizer)))
    assert not any(map(holds_nonzero, twin.parameters()))
    train_step(model, optimizer, batch)
    assert not any(map(holds_nonzero, twin.parameters()))


@each_setting
@copies
def test_a_copy_outlives_its_session(setting, duplicate):
    with session_of(setting):
        model, (x, _) = make_network(setting).eval(), make_batch(setting)
        initialize(setting, model)
        twin = duplicate(model)
        inside = model(x)
    assert model(x).dtype is twin(x).dtype is setting.high
    if setting.casts_weights:
        assert torch.equal(twin(x), inside) and torch.equal(copy.deepcopy(twin)(x), inside)


@each_setting
def test_the_class_of_a_copy_is_restored_when_the_copy_is_freed(setting):
    plain = vars(torch.nn.Sequential)["forward"]
    with session_of(setting):
        model = make_network(setting)
        initialize(setting, model)
        twin = copy.deepcopy(model)
    assert model.forward.__func__ is twin.forward.__func__
    del twin
    gc.collect()
    assert vars(torch.nn.Sequential)["forward"] is plain


@each_setting
def test_a_model_pickled_in_a_session_works_without_one(setting):
    with session_of(setting):
        model, (x, _) = make_network(setting).eval(), make_batch(setting)
        initialize(setting, model)
        pickled = pickle.dumps(model)
        inside = model(x)
    twin = pickle.loads(pickled)
    assert twin(x).dtype is setting.high
    assert torch.allclose(twin(x), inside.to(setting.high), atol=0.0 if setting.casts_weights else 0.05)


@each_setting
def test_a_replica_runs_its_own_weights(setting, session):
    model, (x, _) = Named().to(setting.high), make_batch(setting)
    initialize(setting, model)
    # What torch.nn.parallel.replicate does to every module, the copying to other devices apart.
    replica, layer = replicate(model), replicate(model.layer)
    for name, param in model.layer.named_parameters():
        layer._parameters.pop(name, None)  # torch 1.5 keeps them there, later ones have moved them out
        setattr(layer, name, torch.zeros_like(param))
    replica.layer = layer
    expected = model(x)
    assert not holds_nonzero(replica(x)) and replica(x).dtype is expected.dtype
    assert torch.equal(model(x), expected) and holds_nonzero(expected)


@each_setting
def test_class_name_signature_and_docstring_are_the_models_own(setting, session):
    model = Named().to(setting.high)
    signature = inspect.signature(model.forward)
    initialize(setting, model)
    assert isinstance(model, Named) and type(model) is Named and type(model).__name__ == "Named"
    assert inspect.signature(model.forward) == signature
    assert list(inspect.signature(model.forward).parameters) == ["inputs", "scale", "labels"]
    assert model.forward.__name__ == "forward"


@each_setting
def test_forward_called_directly_casts_too(setting, session):
    model, (x, _) = Named().to(setting.high), make_batch(setting)
    initialize(setting, model)
    assert torch.equal(model.forward(x), model(x)) and model.forward(x).dtype is model(x).dtype
    assert torch.equal(model.forward(inputs=x, scale=2.0), model(x, scale=2.0))


@settings_at("O2", "O5")
def test_another_instance_of_the_same_class_is_not_touched(setting, session):
    model, other = Named().to(setting.high), Named().to(setting.high)
    initialize(setting, model)
    x = torch.ones(1, 6, dtype=setting.high)
    assert other(x).dtype is setting.high and other.layer.weight.dtype is setting.high


@settings_at("O2", "O5")
def test_a_subclass_that_calls_super_forward_casts_once(setting, session):
    seen = []

    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x):
            seen.append(x.dtype)
            return self.layer(x)

    class Outer(Inner):
        def forward(self, x):
            seen.append(x.dtype)
            output = super().forward(x)
            seen.append(output.dtype)
            return output

    inner, outer = Inner().to(setting.high), Outer().to(setting.high)
    initialize(setting, [inner, outer])
    assert outer(torch.ones(1, 2, dtype=setting.high)).dtype is setting.high
    assert seen == [setting.low] * 3


@settings_at("O2", "O5")
def test_a_forward_set_on_the_instance_is_kept_and_cast(setting, session):
    model = Named().to(setting.high)
    model.forward = lambda x: model.layer(x) + 1
    initialize(setting, model)
    assert model(torch.ones(1, 6, dtype=setting.high)).dtype is setting.high


# -- optimizers --------------------------------------------------------------------------------------------------------


@each_setting_and_stored
def test_a_model_and_its_optimizer_deep_copied_together_train_on_alone(setting, session):
    (model, optimizer), batch = begin(setting, 0.125, momentum=0.5), make_batch(setting)
    train_step(model, optimizer, batch)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = [param.detach().clone() for param in model.parameters()]
    losses = [train_step(twin, twin_optimizer, batch) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, model.parameters()))
    assert [train_step(model, optimizer, batch) for _ in range(4)] == losses


@each_setting
def test_a_copied_optimizer_unscales_the_gradient_of_a_delayed_pass_that_was_copied(setting, session):
    model, offset = make_network(setting), torch.ones(3, dtype=setting.high, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), offset], lr=0.5)
    initialize(setting, model, optimizer, loss_scale=8.0)
    with amp.scale_loss((offset * 2).sum(), optimizer, delay_unscale=True) as scaled_loss:
        scaled_loss.backward()
    twin = copy.deepcopy(optimizer)
    copied = twin.param_groups[0]["params"][-1]
    earlier = 0.0 if copied.grad is None else 2.0  # some releases of torch copy those of plain tensors
    with amp.scale_loss((copied * 3).sum(), twin) as scaled_loss:
        scaled_loss.backward()
    assert copied.grad.tolist() == [earlier + 3.0] * 3


@each_setting
def test_an_optimizer_pickles(setting, session):
    (model, optimizer), batch = begin(setting, 0.5), make_batch(setting)
    train_step(model, optimizer, batch)
    twin = pickle.loads(pickle.dumps(optimizer))
    assert all(map(torch.equal, amp.master_params(optimizer), amp.master_params(twin)))


class OwnOptimizer:
    """Has what an optimizer needs, and no ``__getstate__`` before Python 3.11."""

    def __init__(self, params):
        self.param_groups, self.state = [{"params": list(params)}], {}

    def step(self):
        pass

    def zero_grad(self):
        pass


@each_setting
def test_an_optimizer_that_is_no_subclass_of_torchs_can_be_copied(setting, session):
    model = make_network(setting)
    optimizer = OwnOptimizer(model.parameters())
    initialize(setting, model, optimizer, loss_scale=8.0)
    twin = copy.deepcopy(optimizer)
    assert all(map(torch.equal, amp.master_params(optimizer), amp.master_params(twin)))


# -- a model and its optimizer, pickled together -----------------------------------------------------------------------


@each_setting_and_stored
@pytest.mark.parametrize("duplicate", [pickled, saved_and_loaded])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_pickled_model_and_its_optimizer_train_on(setting, duplicate, steps_before, session):
    (model, optimizer), batch = begin(setting, 0.5, momentum=0.5), make_batch(setting)
    for _ in range(steps_before):
        train_step(model, optimizer, batch)
    twin, twin_optimizer = duplicate((model, optimizer))
    before = [param.detach().clone() for param in twin.parameters()]
    losses = [train_step(twin, twin_optimizer, batch) for _ in range(3)]
    assert not all(map(torch.equal, before, [param.detach() for param in twin.parameters()]))
    assert losses == [train_step(model, optimizer, batch) for _ in range(3)]
    assert all(map(torch.equal, twin.parameters(), model.parameters()))
    assert all(map(torch.equal, amp.master_params(twin_optimizer), amp.master_params(optimizer)))


@each_setting
def test_a_model_and_its_optimizer_pickled_in_a_session_train_plainly_without_one_or_say_why_not(setting):
    batch = make_batch(setting)
    with session_of(setting):
        model, optimizer = begin(setting, 0.5)
        train_step(model, optimizer, batch)
        pickled = pickle.dumps((model, optimizer))
    twin, twin_optimizer = pickle.loads(pickled)
    before = [param.detach().clone() for param in twin.parameters()]
    twin_optimizer.zero_grad()
    torch.nn.functional.cross_entropy(twin(batch[0]), batch[1]).backward()
    try:
        twin_optimizer.step()
    except RuntimeError as error:  # of masters, which have no gradients without a session
        assert "pickle" in str(error) and "state_dict" in str(error)
        return
    assert not all(map(torch.equal, before, [param.detach() for param in twin.parameters()]))
