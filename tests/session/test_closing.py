"""Closing a session puts everything back, whatever raises inside it."""

import pytest
import torch
from helpers import forked, loops
from helpers.networks import make_batch, make_network
from helpers.precision import HIGH, low_of

import ampcompat
from ampcompat import amp
from ampcompat.engine.session import process_state
from ampcompat.errors import GradientOverflowError
from ampcompat.observers.skipped_steps.skip_limit import SkipLimits
from ampcompat.support.observer_interface import Observer


class Boom(Exception):
    """Raised by one step of ``close``."""


class Raises(Observer):
    """Raises when the session closes."""

    def __init__(self, name="observer"):
        self.name = name

    def closed(self, session):
        raise Boom(self.name)


def boom(name, first=lambda: None):
    def raising(*args, **kwargs):
        first()
        raise Boom(name)

    return raising


def skip_limits(session):
    (limits,) = [observer for observer in session.observers if isinstance(observer, SkipLimits)]
    return limits


#: What lets one step of closing a session raise: called with the session and ``monkeypatch.setattr``.
BROKEN = {
    "scaler": lambda session, put: put(session.scalers[0], "sync", boom("scaler")),
    "observer": lambda session, put: session.observers.append(Raises()),
    "skip limit": lambda session, put: put(skip_limits(session), "closed", boom("skip limit")),
    "marks": lambda session, put: put(session.forward_token, "close", boom("marks", session.forward_token.close)),
    "casts": lambda session, put: put(session.process_casts, "close", boom("casts", session.process_casts.close)),
    "patch": lambda session, put: session.patches.defer(boom("patch")),
    "patch of the casts": lambda session, put: session.process_casts._patches.defer(boom("patch of the casts")),
}


def begin(level):
    """Open a session with a model that has trained for a step; return (session, model, optimizer)."""
    model, batch = make_network(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", init_scale=8.0, verbosity=0)
    loops.step(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]), optimizer)
    return ampcompat.current(), model, optimizer


def assert_all_is_put_back(model, optimizer, plain_forward, plain_linear):
    assert ampcompat.current() is None and process_state.sessions == []
    assert torch.nn.functional.linear is plain_linear
    assert vars(torch.nn.Sequential)["forward"] is plain_forward
    assert not hasattr(optimizer, "_amp_stash") and "step" not in vars(optimizer)
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in model.parameters()]
    assert all(value.dtype is torch.float32 for value in model.state_dict().values() if value.is_floating_point())


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("closed_by", ["reset", "session"])
def test_a_step_of_closing_that_raises_keeps_no_other_from_being_done(level, broken, closed_by, monkeypatch):
    plain = vars(torch.nn.Sequential)["forward"], torch.nn.functional.linear
    with pytest.raises(Boom):
        if closed_by == "reset":
            session, model, optimizer = begin(level)
            BROKEN[broken](session, monkeypatch.setattr)
            ampcompat.reset()
        else:
            with ampcompat.session(verbosity=0):
                session, model, optimizer = begin(level)
                BROKEN[broken](session, monkeypatch.setattr)
    assert_all_is_put_back(model, optimizer, *plain)


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_weights_without_an_optimizer_are_float32_again_and_state_dicts_torchs_own(level):
    model = make_network().to(HIGH)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    with ampcompat.session(level, verbosity=0):
        amp.initialize(model, optimizer)
        assert model[0].weight.dtype is low_of(level)
    for name, value in model.state_dict().items():
        assert value.dtype is values[name].dtype
        wanted = values[name].to(low_of(level)).to(value.dtype) if value.is_floating_point() else values[name]
        assert torch.equal(value, wanted) or torch.equal(value, values[name])  # what stayed float32 is not rounded
    model.to(low_of(level))
    dtypes = {value.dtype for value in model.state_dict().values() if value.is_floating_point()}
    assert dtypes == {low_of(level)}  # no hook that makes float32 of it is left


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_first_of_several_errors_is_raised_and_shows_the_others(level, monkeypatch):
    plain = vars(torch.nn.Sequential)["forward"], torch.nn.functional.linear
    session, model, optimizer = begin(level)
    for broken in set(BROKEN) - {"casts"}:
        BROKEN[broken](session, monkeypatch.setattr)
    with pytest.raises(Boom, match="scaler") as caught:
        ampcompat.reset()
    assert_all_is_put_back(model, optimizer, *plain)
    shown, error = [], caught.value
    while error is not None:
        shown.append(str(error))
        error = error.__context__
    assert sorted(shown) == ["marks", "observer", "patch", "patch of the casts", "scaler", "skip limit"]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_that_becomes_known_at_the_end_and_is_to_raise_leaves_nothing_open(level):
    plain = vars(torch.nn.Sequential)["forward"], torch.nn.functional.linear
    model, batch = make_network(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(GradientOverflowError):
        with ampcompat.session(level, verbosity=0):
            options = dict(loss_scale="dynamic", max_skips=1, raise_on_max_skips=True)
            amp.initialize(model, optimizer, **options)
            loops.backward(model(batch[0]).float().sum() * float("inf"), optimizer)
    assert_all_is_put_back(model, optimizer, *plain)


def test_an_error_in_the_block_counts_and_shows_that_of_closing():
    with pytest.raises(ValueError, match="body") as caught:
        with ampcompat.session("O1", verbosity=0, observers=[Raises()]):
            begin("O1")
            raise ValueError("body")
    assert isinstance(caught.value.__context__, Boom)
    assert ampcompat.current() is None


def test_reset_closes_every_session_and_raises_the_first_error():
    for name in ("older", "newer"):
        opened = ampcompat.engine.session.training_session.new_session(observers=[Raises(name)])
        process_state.sessions.append(opened)
    with pytest.raises(Boom, match="newer") as caught:
        ampcompat.reset()
    assert process_state.sessions == [] and str(caught.value.__context__) == "older"


def test_what_is_to_raise_and_becomes_known_at_exit_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from ampcompat import amp\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "amp.initialize(model, optimizer, opt_level='O0', loss_scale='dynamic', max_skips=1, raise_on_max_skips=True)\n"
        "with amp.scale_loss(model(torch.ones(1, 2)).sum() * float('inf'), optimizer) as scaled_loss:\n"
        "    scaled_loss.backward()\n"
    )
    assert "GradientOverflowError" in forked.run(forked.script, script).stderr


# -- within a scale_loss block -----------------------------------------------------------------------------------------


def begin_at(level, scale=64.0):
    """Initialize a linear model at a loss scale; return it and its optimizer, with gradients of an earlier pass."""
    model = torch.nn.Linear(4, 1).to(HIGH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    loops.backward(loss_of(model), optimizer)
    return model, optimizer


def loss_of(model):
    return model(torch.ones(2, 4, dtype=HIGH)).float().mean()


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_session_that_ends_within_a_block_leaves_true_gradients(level, is_nested):
    model, optimizer = begin_at(level)
    with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
        if is_nested:
            with amp.scale_loss(loss_of(model), optimizer) as inner_loss:
                inner_loss.backward()
                ampcompat.reset()
        else:
            ampcompat.reset()
    assert model.weight.grad.dtype is HIGH
    assert torch.equal(model.weight.grad, torch.full_like(model.weight, 3.0 if is_nested else 2.0))
    assert "step" not in vars(optimizer)


def test_a_backward_pass_after_the_end_of_the_session_within_a_block_is_an_error(level):
    model, optimizer = begin_at(level)
    with pytest.raises(RuntimeError, match="reset.* within a with amp.scale_loss.* 64"):
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            ampcompat.reset()
            scaled_loss.backward()


def test_an_error_in_a_block_whose_session_has_ended_is_the_scripts_own(level):
    model, optimizer = begin_at(level)
    with pytest.raises(ValueError, match="own"):
        with amp.scale_loss(loss_of(model), optimizer):
            ampcompat.reset()
            raise ValueError("own")
    assert torch.equal(model.weight.grad, torch.ones_like(model.weight))
