"""An observer that raises an error in ``step_skipped``: the loss scale and the other observers' calls miss nothing."""

import pytest
import torch
from helpers.automata import each_automaton, initialized, needs_device, on_device, step

import ampcompat
from ampcompat import amp
from ampcompat.support.observer_interface import Observer


class Refuses(Observer):
    """Keeps the scale after each skipped step, and raises an error."""

    def __init__(self):
        self.scales = []

    def step_skipped(self, session, loss_id, scaler):
        self.scales.append(scaler.loss_scale())
        raise KeyError(len(self.scales))


def contexts(error):
    found = []
    while error.__context__ is not None:
        error = error.__context__
        found.append(error)
    return found


@needs_device
def test_an_observer_that_raises_loses_no_later_update():
    observer = Refuses()
    with ampcompat.session(observers=[observer], verbosity=0):
        model, optimizer = initialized(on_device)
        for overflows in (True, True, False, True, False):
            step(model, optimizer, overflows)
        with pytest.raises(KeyError) as raised:
            amp.state_dict()
        assert raised.value.args == (1,)
        assert [error.args for error in contexts(raised.value)] == [(2,), (3,)]
        assert observer.scales == [2.0**15, 2.0**14, 2.0**13]
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**13, "unskipped": 1}


@each_automaton
def test_an_observer_that_raises_for_one_optimizer_is_called_for_the_next(make_optimizer):
    observer = Refuses()
    with ampcompat.session(observers=[observer], verbosity=0):
        models, optimizers = zip(*[initialized(make_optimizer) for _ in range(2)])
        with amp.scale_loss(
            sum(model(torch.ones(1, 3)).float().sum() for model in models) * float("inf"), list(optimizers)
        ) as scaled_loss:
            scaled_loss.backward()
        with pytest.raises(KeyError):
            amp.state_dict()
        assert observer.scales == [2.0**15] * 2
        assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 0}
