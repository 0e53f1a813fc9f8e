"""Every configuration of torch's own database of optimizers at every level with masters or casts, against float32."""

import functools

import pytest
import torch
from helpers.nested import same
from known_optimizer_differences import BOUNDS, WIDER_BOUNDS
from optimizer_runs import AmpTraining, configurations, state_of, train_plainly

import ampcompat


@pytest.fixture(scope="module", autouse=True)
def database_is_imported(compiled_before):
    """Import the database, and the compiler that steps import, before a test looks at torch."""
    configurations()


@functools.lru_cache(maxsize=None)
def plain_trainings():
    """Return the weights of each training without amp, by the configuration's name."""
    return {each.name: train_plainly(each) for each in configurations()}


def distance(weights, others):
    return torch.cat([(one - other).flatten() for one, other in zip(weights, others)]).norm().item()


def relative_distance(weights, plain):
    """Return how far weights are from those of the training without amp, as a part of what it moved them."""
    return distance(weights, plain[-1]) / distance(plain[0], plain[-1])


def final_weights(configuration, level, **options):
    """Return the weights after a whole training at a level."""
    training = AmpTraining(configuration, level, **options)
    for batch in configuration.batches():
        training.step(batch)
    return training.weights()


@functools.lru_cache(maxsize=None)
def trainings(level):
    """Return the final weights of each training at a level, by the configuration's name, all in one session."""
    options = {"loss_scale": 128.0} if level in ("O1", "O2") else {}
    with ampcompat.session(verbosity=0):
        return {each.name: final_weights(each, level, **options) for each in configurations()}


def test_every_configuration_trains_at_o0_bit_for_bit_as_without_amp():
    plain, trained = plain_trainings(), trainings("O0")
    assert [name for name in plain if not all(map(torch.equal, trained[name], plain[name][-1]))] == []
    assert len(plain) > 80


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_every_configuration_trains_as_in_float32(level):
    plain, trained, far = plain_trainings(), trainings(level), {}
    for each in configurations():
        far_as = relative_distance(trained[each.name], plain[each.name])
        if not far_as <= BOUNDS[level]:
            far.setdefault(each.info.optim_cls.__name__, []).append(far_as)
    expected = {name: bounds[level] for name, bounds in WIDER_BOUNDS.items() if level in bounds}
    assert {name: distances for name, distances in far.items() if max(distances) > expected.get(name, 0)} == {}
    present = {each.info.optim_cls.__name__ for each in configurations()}  # the database grows with the releases
    assert present.intersection(expected) - set(far) == set(), "listed with a wider bound, but near enough without it"


def differs_after_overflows(configuration, level):
    """Train with an overflow at the first step and at one in the middle; return what the overflows changed, or None."""
    training, batches = AmpTraining(configuration, level), configuration.batches()
    for index, batch in enumerate(batches):
        if index in (0, 3):
            weights, state = training.weights(), state_of(training.optimizer)
            training.step(batch, factor=float("inf"))
            if not same(training.weights(), weights):
                return f"weights, at step {index}"
            if any(state) and not same(state_of(training.optimizer), state):
                return f"state, at step {index}"
        training.step(batch)
    trained, undisturbed = training.weights(), trainings(level)[configuration.name]
    bound = WIDER_BOUNDS.get(configuration.info.optim_cls.__name__, BOUNDS).get(level, BOUNDS[level])
    plain = plain_trainings()[configuration.name]
    moved = distance(plain[0], plain[-1])
    return None if distance(trained, undisturbed) <= bound * moved else "the steps after the overflows"


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_that_is_skipped_leaves_weights_and_state_of_every_configuration_as_they_were(level):
    trainings(level)  # before another session is open
    with ampcompat.session(verbosity=0):
        found = {each.name: differs_after_overflows(each, level) for each in configurations()}
    assert {name: what for name, what in found.items() if what} == {}
