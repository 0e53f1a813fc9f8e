"""Nothing is lost or left behind: failing ``initialize``, errors inside contexts, ``enabled=False``, close."""

import pytest
import torch
import torch.nn.functional as F
from helpers.networks import (
    begin,
    differing,
    each_setting,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
    weights_of,
)

import ampcompat
from ampcompat import amp
from ampcompat.engine.session import process_state
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis
from ampcompat.support.observer_interface import Observer

NAMESPACES = (torch, torch.Tensor, F)


def momentum_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def warmed_up(setting):
    """Return a model and optimizer that have trained, with gradients in place that half cannot hold."""
    model, batch = make_network(setting), make_batch(setting)
    optimizer = momentum_sgd(model)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    for param in model.parameters():
        param.grad.add_(1.0 + 2.0**-20)
    return model, optimizer


class Portrait:
    """A model and its optimizer by identity and by value."""

    def __init__(self, model, optimizer):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self.weights = weights_of(model)
        self.grads = {str(i): param.grad.clone() for i, param in enumerate(model.parameters())}
        self.state = {str(i): optimizer.state[param]["momentum_buffer"].clone() for i, param in enumerate(params)}
        self.identities = [id(param) for param in params] + [id(param) for param in model.parameters()]
        self.pointers = [param.data_ptr() for param in model.parameters()]
        self.keys = [id(param) for param in optimizer.state]
        self.attributes = sorted(vars(model)), sorted(vars(optimizer)), [sorted(vars(m)) for m in model.modules()]
        self.hooks = [len(m._state_dict_hooks) + len(m._load_state_dict_pre_hooks) for m in model.modules()]
        self.namespaces = [dict(vars(owner)) for owner in NAMESPACES]

    def differences(self, other):
        """Return the names of what differs."""
        exact = [name for name, value in vars(self).items() if name not in TENSORS and value != vars(other)[name]]
        return exact + [(name, key) for name in TENSORS for key in differing(vars(self)[name], vars(other)[name])]


TENSORS = ("weights", "grads", "state")


def another_half_model(setting, model, optimizer):
    return dict(models=[model, make_network().half()])


def another_stranger(setting, model, optimizer):
    return dict(models=[model, "model"])


def another_used_optimizer(setting, model, optimizer):
    other = momentum_sgd(make_network(setting))
    other._amp_stash = object()
    return dict(optimizers=[optimizer, other])


def keep_nothing(setting, model, optimizer):
    return dict(keep_fp32=["no such layer"])


def fail_late(setting, model, optimizer):
    class Stubborn(torch.optim.SGD):
        def __setattr__(self, name, value):
            if name == "_master_params_to_model_params":
                raise ValueError("stubborn")
            super().__setattr__(name, value)

    return dict(optimizers=[optimizer, Stubborn(make_network(setting).parameters(), lr=0.1)])


FLAWS = [another_half_model, another_stranger, another_used_optimizer, keep_nothing, fail_late]


@each_setting
@pytest.mark.parametrize("flaw", FLAWS)
def test_initialize_that_raises_changes_nothing(setting, flaw, session):
    model, optimizer = warmed_up(setting)
    arguments = dict({"models": model, "optimizers": optimizer}, **flaw(setting, model, optimizer))
    before = Portrait(model, optimizer)
    with pytest.raises((RuntimeError, ValueError)):
        amp.initialize(opt_level=setting.level, **arguments)
    assert Portrait(model, optimizer).differences(before) == []
    assert not hasattr(optimizer, "_amp_stash")
    one = torch.ones(1, 1, dtype=setting.high)
    assert torch.mm(one, one).dtype is setting.high
    initialize(setting, model, optimizer)  # and the mended call works


@each_setting
def test_initialize_that_raises_leaves_an_earlier_one_in_force(setting, session):
    (model, optimizer), batch = begin(setting, 0.05, momentum=0.9, loss_scale=128.0), make_batch(setting)
    train_step(model, optimizer, batch)
    with pytest.raises(RuntimeError):
        initialize(setting, [make_network(setting), make_network(setting)], optimizer)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 128.0
    dtype = setting.low if setting.casts_functions else setting.high
    assert torch.mm(torch.ones(1, 1, dtype=setting.high), torch.ones(1, 1, dtype=setting.high)).dtype is dtype
    first = train_step(model, optimizer, batch)
    assert train_step(model, optimizer, batch) < first


def test_initialize_that_raises_opens_no_session(level):
    with pytest.raises(RuntimeError):
        amp.initialize(make_network().half(), opt_level=level, verbosity=0)
    assert ampcompat.current() is None
    with pytest.raises(RuntimeError, match="initialize"):
        amp.load_state_dict({})


class Fails(Observer):
    """Raises when a model is initialized."""

    def initialized(self, session, models, optimizers):
        raise ZeroDivisionError


@pytest.mark.parametrize("failing", ["observer", "diagnosis", "skip limit"])
def test_initialize_that_raises_after_it_has_cast_undoes_it(level, failing, monkeypatch):
    model = make_network()
    optimizer = momentum_sgd(model)
    F.cross_entropy(model(make_batch()[0]), make_batch()[1]).backward()
    optimizer.step()
    before = Portrait(model, optimizer)
    if failing == "observer":
        monkeypatch.setattr(process_state, "observers", [Fails()])
    elif failing == "diagnosis":
        monkeypatch.setattr(OverflowDiagnosis, "initialized", Fails.initialized)
    else:
        monkeypatch.setattr(amp, "set_skip_limit", lambda *args: Fails().initialized(*args))
    with pytest.raises(ZeroDivisionError):
        amp.initialize(model, optimizer, opt_level=level, diagnose=failing == "diagnosis", verbosity=0)
    assert ampcompat.current() is None
    assert not hasattr(optimizer, "_amp_stash")
    differing_parts = Portrait(model, optimizer).differences(before)
    assert {"identities", "attributes", "hooks", "namespaces"}.isdisjoint(differing_parts)
    assert {param.dtype for param in model.parameters()} == {torch.float32}


# -- gradients that are there before -----------------------------------------------------------------------------------


@each_setting
def test_gradients_from_before_initialize_are_kept(setting, session):
    model, optimizer = warmed_up(setting)
    expected = [param.grad.clone() for param in model.parameters()]
    initialize(setting, model, optimizer)
    for grad, param in zip(expected, amp.master_params(optimizer)):
        assert torch.equal(param.grad, grad.to(param.dtype))


# -- errors inside contexts --------------------------------------------------------------------------------------------


class Interruption(BaseException):
    """Something that no ``except Exception`` catches."""


@each_setting
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Interruption])
def test_an_error_in_scale_loss_leaves_gradients_unscaled_and_scale_and_step_alone(setting, error, session):
    model = torch.nn.Linear(1, 1, bias=False).to(setting.high)
    model.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer, loss_scale="dynamic")
    x = torch.full((1, 1), 2.0**-3, dtype=setting.high)
    with pytest.raises(error):
        with amp.scale_loss(2.0**-3 * model(x).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
            raise error("inside")
    master = next(amp.master_params(optimizer))
    assert master.grad.item() == 2.0**-6
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}}
    optimizer.step()
    assert not amp.step_was_skipped(optimizer) and master.item() == 1.0 - 2.0**-8


@each_setting
def test_an_overflow_in_a_pass_that_raised_is_not_held_against_the_next(setting, session):
    (model, optimizer), batch = begin(setting, 0.05, momentum=0.9, loss_scale="dynamic"), make_batch(setting)
    amp._amp_state.loss_scalers[0]._loss_scale = 64.0
    with pytest.raises(ValueError):
        with amp.scale_loss(model(batch[0]).sum() * float("inf"), optimizer) as scaled_loss:
            scaled_loss.backward()
            raise ValueError
    train_step(model, optimizer, batch)
    assert not amp.step_was_skipped(optimizer)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 1}}


@settings_at("O1", "O4")
def test_an_error_in_disable_casts_puts_the_casts_back(setting, session):
    x = torch.ones(2, 2, dtype=setting.high)
    initialize(setting, make_network(setting))
    with pytest.raises(ValueError), amp.disable_casts(), amp.disable_casts():
        assert torch.mm(x, x).dtype is setting.high
        raise ValueError
    assert torch.mm(x, x).dtype is setting.low


@settings_at("O1", "O4")
def test_an_error_in_forward_backward_or_step_leaves_the_casts_as_they_were(setting, session):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError

    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError

    x = torch.ones(5, 6, dtype=setting.high)
    model = make_network(setting)
    optimizer = Broken(model.parameters(), lr=0.1)
    initialize(setting, model, optimizer)
    # Before torch 1.7 the error comes from another thread, as a RuntimeError.
    with pytest.raises((ValueError, RuntimeError)), amp.scale_loss(
        Raising.apply(model(x)).sum(), optimizer
    ) as scaled_loss:
        scaled_loss.backward()
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 1))
    with pytest.raises(ValueError):
        optimizer.step()
    assert torch.mm(x, x.t()).dtype is setting.low


@each_setting
def test_an_error_in_a_step_leaves_masters_and_model_in_agreement(setting, session):
    class Half(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            raise ValueError

    model, batch = make_network(setting), make_batch(setting)
    optimizer = Half(model.parameters(), lr=0.1)
    initialize(setting, model, optimizer, loss_scale=8.0)
    with pytest.raises(ValueError):
        train_step(model, optimizer, batch)
    optimizer.zero_grad()
    for master, param in zip(amp.master_params(optimizer), model.parameters()):
        assert torch.equal(master.detach().to(param.dtype), param.detach())


# -- closing -----------------------------------------------------------------------------------------------------------


@each_setting
def test_after_the_session_everything_is_a_plain_float32_model_with_the_masters_values(setting):
    batch = make_batch(setting)
    namespaces = [dict(vars(owner)) for owner in NAMESPACES]
    with session_of(setting):
        model = make_network(setting)
        attributes = sorted(vars(model))
        optimizer = momentum_sgd(model)
        methods = sorted(vars(optimizer))
        initialize(setting, model, optimizer, loss_scale=8.0)
        for _ in range(3):
            train_step(model, optimizer, batch)
        masters = [param.detach().clone() for param in amp.master_params(optimizer)]
        momenta = [optimizer.state[param]["momentum_buffer"].clone() for param in amp.master_params(optimizer)]
    assert sorted(vars(model)) == attributes and sorted(vars(optimizer)) == methods
    assert [dict(vars(owner)) for owner in NAMESPACES] == namespaces
    params = list(model.parameters())
    assert all(a is b for a, b in zip(params, optimizer.param_groups[0]["params"]))
    assert all(torch.equal(p.detach(), m.to(setting.high)) for p, m in zip(params, masters))
    assert all(torch.equal(optimizer.state[p]["momentum_buffer"].to(m.dtype), m) for p, m in zip(params, momenta))
    assert model(batch[0]).dtype is setting.high
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


# -- enabled=False -----------------------------------------------------------------------------------------------------


def test_disabled_the_script_runs_as_if_amp_were_not_there(level):
    def trained(with_amp):
        torch.manual_seed(0)
        model, batch = make_network(), make_batch()
        optimizer = momentum_sgd(model)
        if with_amp:
            assert amp.initialize(model, optimizer, enabled=False, opt_level=level) == (model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            if with_amp:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    assert scaled_loss is loss
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
        return weights_of(model)

    assert differing(trained(False), trained(True)) == []


def test_disabled_everything_answers(capfd):
    model = make_network()
    optimizer = momentum_sgd(model)
    assert amp.initialize(model, enabled=False) is model
    assert amp.initialize([model], [optimizer], enabled=False) == ([model], [optimizer])
    assert amp.state_dict() == {}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0, "unskipped": 1}})
    amp.load_state_dict(amp.state_dict())
    assert list(amp.master_params(optimizer)) == list(model.parameters())
    assert amp.step_was_skipped(optimizer) is False
    with amp.disable_casts():
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.float32
    assert amp._amp_state.opt_properties.enabled is False
    assert not amp._amp_state.loss_scalers and amp._amp_state.handle.is_active() is False
    assert amp.half_function(torch.add)(torch.ones(1), 1).dtype is torch.float32
    assert capfd.readouterr() == ("", "")


def test_disabled_takes_what_initialize_would_refuse():
    half = make_network().half()
    assert amp.initialize(half, enabled=False) is half
