"""Several losses, scalers, models and optimizers, an overflow anywhere: against a loop written by hand in float64."""

import gc
import itertools

import pytest
import torch
from helpers import loops
from helpers.networks import (
    INPUT,
    MOMENTUM,
    RATE,
    SETTINGS,
    Product,
    ProductReference,
    ScaleReference,
    begin,
    differing,
    each_setting,
    each_setting_and_stored,
    initialize,
    make_batch,
    session_of,
    settings_at,
    settings_of,
    train_step,
    weights_of,
)
from helpers.pairing import paired

from ampcompat import amp
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.support.observer_interface import Observer
from ampcompat.support.tensor_lists import stored_gradient

ITERATIONS = 4
#: Which models each loss reaches, and with what factor.
LOSSES = [{0: 2.0**-4}, {0: 2.0**-5, 1: 2.0**-4}, {1: 2.0**-3}]
#: Numbers of losses and of optimizers, the iteration of the overflow, if any, and its loss, modulo their number. In the
#: first iteration a gradient overflows, later the loss itself.
AXES = [[1, 2, 3], [1, 2], [None, 0, 2], [0, 1, 2]]
#: Every place of an overflow, and none. Most of it is tested with masters only.
ALL_CASES = [case for case in itertools.product(*AXES) if case[3] < case[0] and (case[2] is not None or case[3] == 0)]


class Lab:
    """Two models with one or two optimizers, and the same by hand."""

    def __init__(self, setting, optimizer_count, num_losses):
        self.models = [Product(1.0).to(setting.high), Product(1.5).to(setting.high)]
        self.references = [ProductReference(setting, model) for model in self.models]
        params = [list(model.parameters()) for model in self.models]
        groups = [params[0] + params[1]] if optimizer_count == 1 else params
        self.optimizers = [torch.optim.SGD(group, lr=RATE, momentum=MOMENTUM) for group in groups]
        self.scales = [ScaleReference() for _ in range(num_losses)]
        self.x = INPUT.to(setting.high)
        initialize(setting, self.models, self.optimizers, num_losses=num_losses, loss_scale="dynamic")

    def optimizers_of(self, loss_id):
        """Return the indices of the optimizers that have params of a loss."""
        return sorted({min(model, len(self.optimizers) - 1) for model in LOSSES[loss_id]})

    def backward(self, index, loss_id, how):
        """Do one backward pass; let it overflow in a way, or not."""
        loss = sum(factor * self.models[m](self.x).sum() for m, factor in LOSSES[index].items())
        given = [self.optimizers[i] for i in self.optimizers_of(index)]
        if how == "loss":
            loss = loss * float("inf")
        with amp.scale_loss(loss, given, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
            if how == "gradient":
                self.models[max(LOSSES[index])].b.grad[1] = float("inf")
        self.scales[loss_id].update(how is not None)
        for model, factor in LOSSES[index].items():
            self.references[model].backward(factor)

    def step(self, skipped):
        """Step what was not skipped by hand, and everything by amp."""
        for index, optimizer in enumerate(self.optimizers):
            optimizer.step()
            assert amp.step_was_skipped(optimizer) == (index in skipped)
            owned = self.references if len(self.optimizers) == 1 else [self.references[index]]
            for reference in owned:
                if index not in skipped:
                    reference.step()
        for thing in self.optimizers + self.references:
            thing.zero_grad()

    def check(self):
        """Compare masters, models and scales with the references, bit for bit."""
        masters = [param for optimizer in self.optimizers for param in amp.master_params(optimizer)]
        expected = [weight for reference in self.references for weight in (reference.a, reference.b)]
        for master, weight in zip(masters, expected):
            assert torch.equal(master.detach().double(), weight)
        for param, weight in zip([p for model in self.models for p in model.parameters()], expected):
            assert torch.equal(param.detach(), weight.to(param.dtype))
        now = [(state["loss_scale"], state["unskipped"]) for state in amp.state_dict().values()]
        assert now == [(scale.scale, scale.unskipped) for scale in self.scales]


@paired("setting, loss_count, optimizer_count, overflow_at, of_loss", SETTINGS, *AXES)
def test_an_overflow_skips_the_optimizers_of_its_loss_once(setting, loss_count, optimizer_count, overflow_at, of_loss):
    check_skips(setting, loss_count, optimizer_count, overflow_at, of_loss)


@paired("setting, case", settings_of("O2"), ALL_CASES)
def test_with_masters_an_overflow_anywhere_skips_the_optimizers_of_its_loss_once(setting, case):
    check_skips(setting, *case)


def check_skips(setting, loss_count, optimizer_count, overflow_at, of_loss, num_losses=None):
    """Train with an overflow in one loss of one iteration, or none; compare everything after every iteration."""
    with session_of(setting):
        lab = Lab(setting, optimizer_count, num_losses or loss_count)
        for iteration in range(ITERATIONS):
            skipped = set()
            for index in range(loss_count):
                now = overflow_at == iteration and of_loss % loss_count == index
                loss_id = index % (num_losses or loss_count)
                lab.backward(index, loss_id, ("loss" if iteration else "gradient") if now else None)
                skipped.update(lab.optimizers_of(index) if now else [])
            lab.step(skipped)
            lab.check()


@paired("setting, overflow_at, of_loss", SETTINGS, [None, 0, 2], [0, 1])
def test_losses_can_share_one_scaler(setting, overflow_at, of_loss):
    check_skips(setting, 2, 2, overflow_at, of_loss, num_losses=1)


@each_setting
def test_overflows_of_several_losses_in_one_iteration_skip_one_step(setting, session):
    lab = Lab(setting, 1, 3)
    for ways in (["gradient", None, "loss"], [None] * 3, ["loss"] * 3, [None] * 3):
        for index, how in enumerate(ways):
            lab.backward(index, index, how)
        lab.step({0} if any(ways) else set())
        lab.check()


def shared(setting, *rates, **options):
    """Return a model with weights of 1, and optimizers with these rates which all have them."""
    model = torch.nn.Linear(4, 1, bias=False).to(setting.high)
    torch.nn.init.ones_(model.weight)
    optimizers = [torch.optim.SGD(model.parameters(), lr=rate) for rate in rates]
    initialize(setting, model, optimizers, loss_scale=8.0, **options)
    return model, optimizers


def reach(setting, model, optimizers, number=1.0, **options):
    """Do a pass with these gradients."""
    loops.backward(model(torch.full((1, 4), number, dtype=setting.high)).sum(), optimizers, **options)


@each_setting_and_stored
@pytest.mark.parametrize("index", [0, 1])
def test_a_param_that_two_optimizers_share_has_the_gradient_of_a_pass_for_one_of_them(setting, index, session):
    model, optimizers = shared(setting, 0.25, 0.25)
    for step in range(2):
        reach(setting, model, optimizers[index])
        assert bool((model.weight.grad.to(setting.high) == 1.0).all())
        model.weight.grad.mul_(0.5)
        optimizers[index].step()
        assert bool((model.weight.detach().double() == 1.0 - 0.125 * (step + 1)).all())
        optimizers[index].zero_grad()


@each_setting_and_stored
@pytest.mark.parametrize("delay_unscale", [False, True])
def test_only_scaled_gradients_of_a_pass_for_another_optimizer_of_the_param_are_told(
    setting, delay_unscale, capsys, loud
):
    model, optimizers = shared(setting, 0.25, 0.25)
    reach(setting, model, optimizers[0], delay_unscale=delay_unscale)
    optimizers[1].step()
    assert ("uses gradients that are scaled" in capsys.readouterr().out) == delay_unscale


@settings_at("O0", "O1", "O2", "O4", "O5", stored=True)
def test_an_optimizer_that_comes_later_adds_to_the_same_master_weights(setting, session):
    step = torch.finfo(setting.low).eps / 8  # lost where a weight of 1 is rounded
    model, optimizers = shared(setting, step)
    for index in (0, 0, 1, 0, 1, 1, 0):
        if index == len(optimizers):
            optimizers.append(torch.optim.SGD(model.parameters(), lr=step / 2))
        reach(setting, model, optimizers[index])
        optimizers[index].step()
        optimizers[index].zero_grad()
    assert bool((model.state_dict()["weight"].double() == 1.0 - 5.5 * step).all())


@settings_at("O0", "O1", "O2", "O4", "O5", stored=True)
def test_weights_that_a_script_writes_through_data_stay_where_two_optimizers_share_them(setting, session):
    model, optimizers = shared(setting, 0.5, 0.5)
    model.weight.data.fill_(2.0)
    for optimizer in optimizers:
        for each in optimizers:
            each.zero_grad()
        assert bool((model.weight.detach().float() == 2.0).all())
        reach(setting, model, optimizer)
        optimizer.step()
        assert bool((model.state_dict()["weight"].float() == 1.5).all())
        model.weight.data.fill_(2.0)


@settings_at("O2", "O5", stored=True)
def test_an_optimizer_that_has_replaced_another_keeps_no_more_between_steps(setting, session):
    model, optimizers = shared(setting, 0.5, free_half_grads=True)
    for _ in range(2):
        for _ in range(2):
            reach(setting, model, optimizers)
            optimizers[0].step()
        assert bool(record_of(optimizers[0]).masters.stored_chunks()) == setting.stored
        assert all(stored_gradient(pair.master) is None for pair in record_of(optimizers[0]).pairs())
        optimizers[0] = torch.optim.SGD(model.parameters(), lr=0.5)
        initialize(setting, model, optimizers, loss_scale=8.0, free_half_grads=True)
        gc.collect()


@settings_at("O2", "O5", stored=True)
@pytest.mark.parametrize("clears", [None, "model", "optimizers"])
def test_a_freed_gradient_of_a_shared_param_is_there_for_each_optimizers_step_and_in_no_later_pass(
    setting, clears, session
):
    model, optimizers = shared(setting, 0.5, 0.25, free_half_grads=True)
    expected = model.state_dict()["weight"].clone()
    for number in (1.0, 2.0, 4.0):
        reach(setting, model, optimizers, number)
        for optimizer in optimizers:
            optimizer.step()
        for each in {None: [], "model": [model], "optimizers": optimizers}[clears]:
            each.zero_grad()
        expected = expected - 0.75 * number
        assert torch.equal(model.state_dict()["weight"], expected)


class Failing(Observer):
    def initialized(self, session, models, optimizers):
        raise ZeroDivisionError


@each_setting_and_stored
def test_an_initialize_that_fails_leaves_an_earlier_optimizer_of_its_params_as_it_was(setting):
    found = []
    for fails in (False, True):
        with session_of(setting) as session:
            model, optimizer = begin(setting, RATE, momentum=0.5)
            train_step(model, optimizer, make_batch(setting))
            if fails:
                session.observers.append(Failing())
                with pytest.raises(ZeroDivisionError):
                    initialize(setting, model, torch.optim.SGD(model.parameters(), lr=RATE), loss_scale=8.0)
                session.observers.clear()
            train_step(model, optimizer, make_batch(setting))
            found.append([weights_of(model), {name: value.clone() for name, value in model.state_dict().items()}])
            found[-1].append({name: param.grad for name, param in model.named_parameters()})
    assert [differing(*each) for each in zip(*found)] == [[], [], []]
