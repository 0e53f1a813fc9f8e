"""Specification 3: ``amp.scale_loss``, what it yields and what it leaves behind."""

import copy
import inspect
import weakref

import pytest
import torch
from helpers import loops
from helpers.networks import (
    FACTOR,
    INPUT,
    Lab,
    Product,
    each_setting,
    initialize,
    make_batch,
    make_network,
    settings_at,
    train_step,
)

from ampcompat import amp


def test_signature_is_apexs():
    parameters = inspect.signature(amp.scale_loss).parameters
    assert [(name, parameter.default) for name, parameter in parameters.items()][2:] == [
        ("loss_id", 0),
        ("model", None),
        ("delay_unscale", False),
        ("delay_overflow_check", False),
    ]
    assert list(parameters)[:2] == ["loss", "optimizers"]


@pytest.mark.parametrize("is_init_called", [False, True])
def test_before_initialize_it_says_what_to_call_first(is_init_called):
    model = make_network()
    if is_init_called:
        amp.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"amp\.initialize"):
        with amp.scale_loss(model(make_batch()[0]).sum(), optimizer):
            pass


@each_setting
@pytest.mark.parametrize("scale", [1.0, 128.0, "dynamic"])
def test_yields_the_loss_in_float32_times_the_scale(setting, scale, session):
    lab = Lab(setting, loss_scale=scale)
    number = 65536.0 if scale == "dynamic" else scale
    for dtype in (setting.high, setting.low):
        with amp.scale_loss(torch.tensor(1.5, dtype=dtype), lab.optimizer) as scaled_loss:
            assert scaled_loss.dtype is setting.high
            assert scaled_loss.item() == 1.5 * number


@each_setting
def test_at_a_dynamic_scale_of_one_the_scaled_loss_is_another_tensor(setting, session):
    lab = Lab(setting, max_loss_scale=1.0)
    loss = torch.ones((), dtype=setting.high)
    with amp.scale_loss(loss, lab.optimizer) as scaled_loss:
        scaled_loss *= 0.5
    assert (loss.item(), scaled_loss.item()) == (1.0, 0.5)


@each_setting
@pytest.mark.parametrize("scale", [1.0, 128.0, "dynamic"])
def test_gradients_come_out_unscaled_in_float32(setting, scale, session):
    lab = Lab(setting, loss_scale=scale)
    lab.backward()
    wide = setting.low if setting.level == "O3" else setting.high
    assert {param.grad.dtype for param in amp.master_params(lab.optimizer)} == {wide}
    lab.check_gradients()


@each_setting
def test_gradients_of_inputs_and_those_that_hooks_get_stay_scaled_as_in_apex(setting, session):
    lab = Lab(setting, loss_scale=128.0)
    lab.x = torch.ones_like(lab.x, requires_grad=True)
    seen = []
    param = lab.model.a
    param.register_hook(lambda gradient: seen.append(gradient.double().clone()))
    (true,) = torch.autograd.grad(FACTOR * lab.model(lab.x).sum(), lab.x)
    lab.backward()
    assert torch.equal(lab.x.grad, 128 * true)
    assert len(seen) == 1 and torch.equal(seen[0], 128 * param.grad.double())


@settings_at("O1", "O2")
def test_gradients_too_small_for_half_are_saved_by_the_scale(setting, session):
    lab = Lab(setting)
    tiny = torch.finfo(setting.low).tiny * 2.0**-12
    lab.backward(factor=tiny)
    lab.check_gradients()


@pytest.mark.parametrize("loss_id", [2, -3, "0", None])
def test_a_loss_id_without_a_scaler_is_an_error_that_names_num_losses(loss_id):
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, num_losses=2, verbosity=0)
    with pytest.raises(RuntimeError, match="num_losses"):
        with amp.scale_loss(torch.tensor(1.0), optimizer, loss_id=loss_id):
            pass


@pytest.mark.parametrize("optimizers", ["optimizer", None, [None], 3])
def test_anything_else_than_optimizers_is_a_type_error(optimizers):
    amp.initialize(make_network(), verbosity=0)
    with pytest.raises(TypeError, match="optimizer"):
        with amp.scale_loss(torch.tensor(1.0), optimizers):
            pass


@each_setting
def test_a_loss_that_is_no_tensor_is_an_error_that_changes_no_gradient(setting, session):
    lab = Lab(setting)
    lab.backward()
    with pytest.raises(TypeError, match="loss"):
        with amp.scale_loss(1.5, lab.optimizer):
            pass
    lab.check_gradients()


# -- delays ------------------------------------------------------------------------------------------------------------


@each_setting
def test_delay_unscale_leaves_the_sum_to_a_later_pass(setting, session):
    lab = Lab(setting)
    lab.backward(delay_unscale=True)
    held = [param.grad.double() for param in lab.model.parameters()]
    assert all(map(torch.equal, held, [65536 * grad for grad in lab.reference.grads.values()]))
    lab.backward(delay_unscale=True)
    lab.backward(2 * FACTOR)
    lab.check_gradients()
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1


@each_setting
def test_delay_overflow_check_unscales_and_leaves_scale_and_skip_alone(setting, session):
    lab = Lab(setting)
    lab.backward(delay_overflow_check=True)
    lab.check_gradients()
    lab.backward(inject=float("inf"), delay_overflow_check=True)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 65536.0, "unskipped": 0}
    lab.optimizer.step()
    assert not amp.step_was_skipped(lab.optimizer)


@each_setting
def test_after_a_delayed_check_a_pass_with_the_check_answers_for_the_sum(setting, session):
    lab = Lab(setting)
    lab.backward(inject=float("nan"), delay_overflow_check=True)
    lab.backward()
    lab.optimizer.step()
    assert amp.step_was_skipped(lab.optimizer)


# -- overflow ----------------------------------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_an_overflow_skips_the_next_step_once_and_says_so(setting, value, capsys, loud):
    lab = Lab(setting)
    capsys.readouterr()
    before = lab.weights()
    lab.backward(inject=value)
    lab.optimizer.step()
    said = capsys.readouterr().out
    assert said == "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    assert all(map(torch.equal, before, lab.weights()))
    assert amp.step_was_skipped(lab.optimizer)
    lab.optimizer.zero_grad()
    lab.backward()
    lab.optimizer.step()
    assert capsys.readouterr().out == "" and not amp.step_was_skipped(lab.optimizer)
    assert not any(map(torch.equal, before, lab.weights()))


def same(old, new):
    """Compare entries of an optimizer's state, which are tensors or numbers."""
    return torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new


@each_setting
def test_a_skipped_step_leaves_the_optimizers_state_alone(setting, session):
    model, batch = make_network(setting), make_batch(setting)
    optimizer = torch.optim.Adam(model.parameters())
    initialize(setting, model, optimizer, loss_scale="dynamic")
    amp._amp_state.loss_scalers[0]._loss_scale = 128.0
    train_step(model, optimizer, batch)
    before = [copy.deepcopy(dict(state)) for state in optimizer.state.values()]
    loops.step(model(batch[0]).sum() * float("nan"), optimizer)
    after = [dict(state) for state in optimizer.state.values()]
    assert all(same(old[k], new[k]) for old, new in zip(before, after) for k in old)


# -- closures ----------------------------------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("how", ["position", "keyword"])
def test_a_closure_is_run_by_the_step(setting, how, session):
    lab = Lab(setting, loss_scale=128.0)

    def closure():
        lab.optimizer.zero_grad()
        lab.backward()
        return torch.tensor(7.0)

    loss = lab.optimizer.step(closure) if how == "position" else lab.optimizer.step(closure=closure)
    assert loss.item() == 7.0
    lab.reference.step()
    lab.check()


@each_setting
def test_an_overflow_in_a_closure_skips_the_step(setting, session):
    lab = Lab(setting)
    before = lab.weights()
    lab.optimizer.step(lambda: lab.backward(inject=float("inf")))
    assert amp.step_was_skipped(lab.optimizer)
    assert all(map(torch.equal, before, lab.weights()))
    assert amp._amp_state.loss_scalers[0].loss_scale() == 32768.0


@each_setting
def test_an_optimizer_that_evaluates_its_closure_again_works(setting, session):
    model, losses = Product(1.0).to(setting.high), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    initialize(setting, model, optimizer, loss_scale=128.0)

    def closure():
        optimizer.zero_grad()
        loss = ((model(INPUT.to(setting.high)).float() - 1.0) ** 2).sum()
        losses.append(loss.item())
        loops.backward(loss, optimizer)
        return loss

    optimizer.step(closure)
    assert len(losses) > 1 and losses[-1] < losses[0]


# -- checkpoints of the scalers ----------------------------------------------------------------------------------------


def test_state_dict_is_apexs(level):
    model = make_network()
    amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, num_losses=2, verbosity=0)
    scale = amp._amp_state.loss_scalers[0].loss_scale()
    assert amp.state_dict() == {"loss_scaler%d" % i: {"loss_scale": scale, "unskipped": 0} for i in range(2)}
    assert all(type(value) is float for value in (amp.state_dict()["loss_scaler0"]["loss_scale"],))
    assert amp.state_dict(destination={"mine": 1})["mine"] == 1


def test_load_state_dict_takes_over_scale_and_count(level):
    model = make_network()
    amp.initialize(model, opt_level=level, loss_scale="dynamic", verbosity=0)
    written = {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 1999}}
    amp.load_state_dict(written)
    assert amp.state_dict() == written
    amp._amp_state.loss_scalers[0].update_scale()
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 2048.0, "unskipped": 0}}


@pytest.mark.parametrize("written, used", [(1, 2), (3, 2), (0, 1)])
def test_fewer_or_more_scalers_than_now_are_tolerated_with_a_warning(written, used, capsys):
    amp.initialize(make_network(), num_losses=used)
    capsys.readouterr()
    amp.load_state_dict({"loss_scaler%d" % i: {"loss_scale": 2.0**i, "unskipped": i} for i in range(written)})
    assert "arning" in capsys.readouterr().out
    expected = [2.0**i if i < written else 65536.0 for i in range(used)]
    assert [state["loss_scale"] for state in amp.state_dict().values()] == expected


@pytest.mark.parametrize("second", [{}, {"loss_scale": 2.0}, {"unskipped": 3}])
def test_a_scaler_with_a_part_missing_is_an_error_that_changes_no_scaler(second):
    amp.initialize(make_network(), num_losses=2, verbosity=0)
    before = amp.state_dict()
    with pytest.raises(RuntimeError, match="loss_scaler1"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1}, "loss_scaler1": second})
    assert amp.state_dict() == before


@pytest.mark.parametrize("wrong", [{"model": {}}, {"loss_scaler0": {}, "optimizer": {}}, {"loss_scalerx": {}}])
def test_other_keys_are_an_error_naming_them(wrong):
    amp.initialize(make_network(), verbosity=0)
    before = amp.state_dict()
    with pytest.raises(RuntimeError) as raised:
        amp.load_state_dict(wrong)
    assert [key for key in wrong if key != "loss_scaler0"][0] in str(raised.value)
    assert amp.state_dict() == before


@settings_at("O1", "O4")
def test_casts_of_weights_are_not_held_while_backward_runs(setting, session):
    lab, seen = Lab(setting), []

    @amp.half_function
    def total(weight):
        assert weight.dtype is setting.low
        seen.append(weakref.ref(weight))
        return weight.sum()

    loss = FACTOR * total(lab.model.a)
    with amp.scale_loss(loss, lab.optimizer) as scaled_loss:
        assert seen[0]() is None
        scaled_loss.backward()
    assert bool((lab.model.a.grad == FACTOR).all())
