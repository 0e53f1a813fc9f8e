"""What a session tells its observers, and when."""

import pytest
import torch

import ampcompat
from ampcompat import amp
from ampcompat.runtime import state
from ampcompat.runtime.observers import Observer


class Listener(Observer):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def initialized(self, session, models, optimizers):
        self.heard.append(("initialized", len(models), len(optimizers)))

    def before_backward(self, backward):
        self.heard.append(("before_backward", backward.loss_id, backward.verdict))

    def after_backward(self, backward):
        self.heard.append(("after_backward", backward.loss_id, backward.verdict.overflowed()))

    def skipped(self, session, loss_id, scaler):
        self.heard.append(("skipped", loss_id))

    def before_step(self, adapter):
        self.heard.append(("before_step",))

    def after_step(self, adapter):
        self.heard.append(("after_step", adapter.skips.was_last()))

    def closed(self, session):
        self.heard.append(("closed",))


def train(level, overflows):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, loss_scale="dynamic", init_scale=8.0, verbosity=0)
    loss = model(torch.ones(2, 3)).sum() * (float("inf") if overflows else 1.0)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


@pytest.mark.parametrize("overflows", [False, True])
def test_an_observer_hears_every_stage_in_order(level, overflows):
    listener = Listener()
    with ampcompat.session(level, observers=[listener], verbosity=0):
        train(level, overflows)
    expected = [("initialized", 1, 1), ("before_backward", 0, None), ("after_backward", 0, overflows), ("before_step",)]
    assert listener.heard == expected + [("skipped", 0)] * overflows + [("after_step", overflows), ("closed",)]


def test_process_wide_observers_come_with_every_new_session(monkeypatch):
    listener = Listener()
    monkeypatch.setattr(state, "observers", [listener])
    train("O1", False)
    ampcompat.reset()
    assert listener.heard[0] == ("initialized", 1, 1)
    assert listener.heard[-1] == ("closed",)
